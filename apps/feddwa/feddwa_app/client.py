"""The ClientApp."""

from feddwa.flower import client

app = client.app
