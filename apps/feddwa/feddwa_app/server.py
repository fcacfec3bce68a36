"""The ServerApp."""

from feddwa.flower import server

app = server.app
