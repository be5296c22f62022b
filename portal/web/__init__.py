"""What all pages share: frame, styles, scripts."""
