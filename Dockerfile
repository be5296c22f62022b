# The image of every Trainyard service of docker-compose.yml.
#   docker build -t trainyard .                          with the trainer (torch: CPU or CUDA as the index gives)
#   docker build -t trainyard-server --build-arg EXTRAS= .   portal, scheduler and chores alone: 700 MB smaller
FROM python:3.11-slim

ARG EXTRAS=[train]
ENV PYTHONUNBUFFERED=1 PYTHONPATH=/app PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /app

# Dependencies in a layer of their own: they change seldom.
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN mkdir -p portal flows trainer scheduler \
 && pip install --no-cache-dir -c constraints.txt -e ".${EXTRAS}"

COPY manage.py ./
COPY portal portal
COPY flows flows
COPY trainer trainer
COPY scheduler scheduler
RUN useradd --uid 1000 --create-home trainyard \
 && install -d -o trainyard -g trainyard -m 0750 /data /secrets
USER trainyard
ENV DJANGO_SETTINGS_MODULE=portal.settings
CMD ["uvicorn", "portal.asgi:application", "--host", "0.0.0.0", "--port", "8000"]
