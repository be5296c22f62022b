"""The PyTorch trainer. Imports nothing of ours, and runs wherever torchrun does."""
