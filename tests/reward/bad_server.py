"""A judge that fails on purpose, in a process of its own: `python bad_server.py` prints its two ports and serves.

The first path segment of an address says how it behaves, the second with what number; each address counts for itself.
The second port speaks raw TCP, for what no web framework can be made to do.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import struct
from collections import Counter
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

app = FastAPI()
seen: Counter[str] = Counter()
asked: list[dict[str, Any]] = []
together = 0
most_together = 0


def chat(words: str) -> JSONResponse:
    return JSONResponse({"choices": [{"message": {"role": "assistant", "content": words}}]})


def graded(body: dict[str, Any]) -> JSONResponse:
    """Grades by the word ``worth=N`` in the question; of ``first ||| second`` the longer one wins."""
    question = next(m["content"] for m in body["messages"] if m["role"] == "user")
    if "|||" in question:
        first, second = (part.strip() for part in question.split("|||"))
        winner = "tie" if len(first) == len(second) else "A" if len(first) > len(second) else "B"
        return chat(json.dumps({"reason": "the longer", "winner": winner}))
    worth = re.search(r"worth=(\d+)", question)
    return chat(json.dumps({"reason": "by its worth", "score": int(worth[1]) if worth else 0}))


@app.get("/counts")
async def counts() -> dict[str, Any]:
    return {"seen": seen, "most_together": most_together, "asked": [json.dumps(body) for body in asked]}


@app.post("/{mode}/{number}/{rest:path}")
async def answer(mode: str, number: int, rest: str, request: Request) -> Response:
    global together, most_together
    body = await request.json()
    address = f"{mode}/{number}"
    seen[address] += 1
    count = seen[address]
    together += 1
    most_together = max(most_together, together)
    try:
        return await behave(mode, number, count, body, request)
    finally:
        together -= 1


async def behave(mode: str, number: int, count: int, body: dict[str, Any], request: Request) -> Response:
    if mode == "fails" and count <= number:  # the first so many
        return JSONResponse({"error": "overloaded"}, 500)
    if mode == "down":
        return JSONResponse({"error": "down"}, 503)
    if mode == "busy" and count <= number:
        return JSONResponse({"error": "slow down"}, 429, {"Retry-After": "0.05"})
    if mode == "html":
        return Response("<h1>Bad gateway</h1>", 200, media_type="text/html")
    if mode == "cut" and count <= number:
        return Response('{"choices": [{"mess', 200, media_type="application/json")
    if mode == "other":
        return JSONResponse({"result": "yes"})
    if mode == "denied":
        return JSONResponse({"error": f"no such key: {request.headers.get('authorization')}"}, 401)
    if mode == "plain" and "response_format" in body:
        return JSONResponse({"error": "response_format is not supported"}, 400)
    if mode == "mumbles" and len([m for m in body["messages"] if m["role"] == "assistant"]) < number:
        return chat("It is rather good, I think.")
    if mode == "dies" and count > number:
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "hangs":
        await asyncio.Event().wait()
    if mode == "notes":  # for tests of the question itself
        asked.append(body)
    if mode == "scores":
        return JSONResponse({"scores": [float(len(item["completion"])) for item in body["items"]]})
    return graded(body)


async def raw(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """``/reset``: hangs up in the midst; ``/drip``: a byte of the reply now and then, for ever."""
    head = await reader.readuntil(b"\r\n\r\n")
    seen["reset/1" if b"/reset/" in head else "drip/1"] += 1
    if b"/reset/" in head:
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"cho')
        await writer.drain()
        writer.transport.abort()
        return
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n")
    try:
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.02)
    except ConnectionError:
        writer.close()


async def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
    trickster = await asyncio.start_server(raw, "127.0.0.1", 0)
    print(json.dumps([listening.getsockname()[1], trickster.sockets[0].getsockname()[1]]), flush=True)
    await server.serve(sockets=[listening])


if __name__ == "__main__":
    asyncio.run(main())
