"""The app: all of it is in the installed package feddwa."""
