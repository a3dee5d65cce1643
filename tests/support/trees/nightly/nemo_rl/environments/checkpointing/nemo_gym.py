"""Gym's part of a snapshot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any


class NemoGymCheckpointing:
    """Parks a Gym, has it write its part, and resumes it."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    @asynccontextmanager
    async def parked(self, path: Path) -> AsyncIterator[None]:
        """Park Gym while the body runs."""
        await self._handle.checkpoint_prepare.remote(path.name)
        try:
            await self._handle.checkpoint_commit.remote(path.name, str(path))
            yield
        finally:
            await self._handle.checkpoint_resume.remote(path.name)
