"""What a client's script found out, said line by line; it fails if anything did not hold."""

from __future__ import annotations

Checks = list[tuple[str, object]]  # what was tried, and what came: nothing false may come


def conclude(checks: Checks) -> None:
    """Print everything; the last line is what `clients.py` looks for."""
    for what, result in checks:
        print(f"{what}: {result!r}")
    failed = [what for what, result in checks if not result]
    assert not failed, f"failed: {failed}"
    print(f"all {len(checks)} checks passed")
