"""Numbers with units, human-readable."""


def human_bytes(count: float) -> str:
    """1536 -> "1.5 KiB"."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"


def human_flops(count: float) -> str:
    """2.3e9 -> "2.3 GFLOP"."""
    value, units = float(count), ["", "k", "M", "G", "T", "P", "E"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.1f} {units[0]}FLOP"


def human_seconds(seconds: float) -> str:
    """75 -> "1 min 15 s"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
