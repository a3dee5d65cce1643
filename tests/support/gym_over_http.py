"""Gym's agents behind real HTTP, and RL's actor in front of them, for processes of their own on Ray."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from tests.support.gym_agents import AgentServer, GymError, NemoGym, Work
from tests.support.recovering_rl import Controller

Answer = Callable[[str, str, dict[str, Any]], Awaitable[Any]]


async def serve(answer: Answer) -> int:
    """Answer HTTP requests on a free port of this machine, each on a connection of its own; the port."""

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, target, _ = head[0].split(" ")
            length = next((int(line[15:]) for line in head if line.lower().startswith("content-length:")), 0)
            body = json.loads(await reader.readexactly(length)) if length else {}
            path = urlsplit(target)
            status, payload = 200, {}
            try:
                payload = await answer(method, path.path, {**dict(parse_qsl(path.query)), **body})
            except GymError as error:
                status, payload = error.status, {"error": {"code": error.code}}
            text = json.dumps(payload).encode()
            writer.write(b"HTTP/1.1 %d -\r\nContent-Length: %d\r\n\r\n%s" % (status, len(text), text))
            await writer.drain()
        finally:
            writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", 0, limit=2**20)
    port: int = server.sockets[0].getsockname()[1]
    return port


async def request(port: int, method: str, path: str, fields: dict[str, Any]) -> Any:
    """Send one HTTP request, with a query or a body; the answer's JSON.

    Raises:
        GymError: The answer is not 200.
    """
    query, body = (f"?{urlencode(fields)}", b"") if method == "GET" else ("", json.dumps(fields).encode())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"{method} {path}{query} HTTP/1.1\r\nHost: gym\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.read()
    finally:
        writer.close()
    first, _, text = answer.partition(b"\r\n\r\n")
    payload, status = json.loads(text), int(first.split(b" ")[1])
    if status != 200:
        raise GymError(payload["error"]["code"], status)
    return payload


class GymOnRay(NemoGym):
    """RL's Gym actor; its agents run on a loop and in a thread of their own, behind HTTP."""

    def __init__(self, names: list[str]) -> None:
        self.acknowledged: list[tuple[str, int]] = []
        self._servers = {name: AgentServer(name, time.time, self.acknowledged.append) for name in names}
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        ports = {
            name: asyncio.run_coroutine_threadsafe(serve(agent.handle), loop).result()
            for name, agent in self._servers.items()
        }
        super().__init__({name: partial(request, port) for name, port in ports.items()}, time.time)

    async def break_route(self, route: str, times: int, hangs: bool) -> None:
        """Let the next requests to a route fail, or take longer than anybody waits."""

        async def fault() -> None:
            await asyncio.sleep(60.0 if hangs else 0.0)
            raise GymError("broken", 500)

        self.faults[route] = [fault] * times

    async def report(self) -> dict[str, Any]:
        """What the agents have, and what a restore of each snapshot would say."""
        return {
            "acknowledged": sorted(self.acknowledged),
            "completed": [key for agent in self._servers.values() for key in agent.states("completed")],
            "restorable": [
                agent.restorable(name) for agent in self._servers.values() for name in agent.snapshots
            ],
        }


class ControllerOnRay(Controller):
    """The controller as an actor: it plays a whole story, since its loop is where all of it happens."""

    def __init__(self, gym: Any, options: dict[str, Any]) -> None:
        super().__init__(gym, time.time, **options)

    async def play(self, story: dict[str, Any]) -> dict[str, Any]:
        """Run prompt groups and take snapshots; how each snapshot ended, and after how many seconds.

        Args:
            story: `first`: whether a snapshot comes before the groups. `groups`: for each group its rows, and
                for each row what its first attempt does and what the later ones do. `settle_s`: seconds
                between the groups' end, or their begin where `parked`, and the snapshots. `faults`: what
                goes wrong from then on. `snapshots`: how many. `publish_s`: how long each is published.
        """
        if story["first"]:
            await self.snapshot("first")
        groups = [
            asyncio.ensure_future(self.group(f"group{number}", "agent", [_plan(*row) for row in rows]))
            for number, rows in enumerate(story["groups"])
        ]
        if not story["parked"]:
            await asyncio.gather(*groups)
        await asyncio.sleep(story["settle_s"])
        for route, (times, hangs) in story["faults"].items():
            await self._gym.break_route.remote(route, times, hangs)
        saved, took = [], []
        for number in range(story["snapshots"]):
            began = time.monotonic()
            saved.append(await self.snapshot(f"snapshot{number}", story["publish_s"]))
            took.append(time.monotonic() - began)
            await asyncio.sleep(story["between_s"])
        await asyncio.gather(*groups)
        return {"saved": saved, "took": took, "done": self.done, "telemetry": self.telemetry}


def _plan(first: dict[str, Any], later: dict[str, Any]) -> Callable[[int, int], Work]:
    return lambda number, attempt: Work(**(later if attempt else first))
