STACKED: dict = {}
