"""A completions server that fails as the first part of an address's path says: ``/fails/2/completion``.

It speaks as llama.cpp does, over sockets of its own, so that it can hang up in the midst. Tokens count up from the
last of the prompt, log-probs are -0.5. ``/counts`` tells what came, ``/last`` the last question.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
from collections import Counter
from typing import Any

seen: Counter[str] = Counter()
last: dict[str, Any] = {}
MODEL = {"id": "m", "owned_by": "vllm", "max_model_len": 50}


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next((int(x.split(":")[1]) for x in head.lower().split("\r\n") if x.startswith("content-length")), 0)
        body = json.loads(await reader.readexactly(length)) if length else {}
        _, mode, number, *rest = head.split()[1].split("/", 3)
        await behave(mode, int(number or 0), rest[0] if rest else "", body, head, writer)
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def behave(mode: str, number: int, path: str, body: dict[str, Any], head: str, writer: Any) -> None:
    if mode in ("counts", "last"):
        return await reply(writer, 200, dict(seen) if mode == "counts" else last)
    seen[f"{mode}/{number}/{path}"] += 1
    count = seen[f"{mode}/{number}/{path}"]
    if path == "v1/models":
        owner = {"stranger": "someone"}.get(mode, "vllm")
        return await reply(writer, 200, {"data": [{**MODEL, "owned_by": owner}]})
    if path == "detokenize":
        return (
            await reply(writer, 200, {"prompt": "Something else"})
            if mode == "foreign"
            else await reply(writer, 404, {})
        )
    if path == "health":
        return await reply(writer, 503 if mode == "down" else 200, {})
    last.clear()
    last.update(body)
    if mode in ("down", "ill") or (mode == "fails" and count <= number):
        return await reply(writer, 503 if mode == "down" else 500, {"error": "overloaded"})
    if mode == "refuses":
        return await reply(writer, 400, {"error": "no such field"})
    if mode == "denied":
        sent = next(line for line in head.split("\r\n") if line.lower().startswith("authorization"))
        return await reply(writer, 401, {"error": f"no such key: {sent}"})
    if mode == "html":
        return await send(writer, "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<h1>Hello</h1>")
    await send(writer, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
    if path == "v1/completions":
        return await completions(mode, body, writer)
    return await stream(mode, number, count, body, writer)


async def stream(mode: str, number: int, count: int, body: dict[str, Any], writer: Any) -> None:
    first, n = body["prompt"][-1] + 1, body["n_predict"]
    if mode == "lost" and body["prompt"][0] == 9:
        seen["lost one"] += 1
        if seen["lost one"] == 1:  # this one call hangs, the others run on until it is asked again
            await asyncio.Event().wait()
    for i in range(n):
        if mode == "malformed" and count <= number and i == 1:
            return await send(writer, 'data: {"tokens": [5')
        if mode == "cut" and count <= number and i == 2:
            return
        if mode == "reset" and count <= number and i == 2:
            await asyncio.sleep(0.05)  # so that the first two are read before the reset is
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            return writer.transport.abort()
        if mode == "dies" and i == number:
            os.kill(os.getpid(), signal.SIGKILL)
        if mode == "stalls" and i == number:
            await asyncio.Event().wait()
        while mode == "lost" and body["prompt"][0] != 9 and i == n - 1 and seen["lost one"] < 2:
            await send(writer, event(body, 0, first, i, None, ids=[]))
            await asyncio.sleep(0.02)
        for place in range(body.get("n_cmpl", 1)):
            logprob = {"nan": None, "above": 0.5}.get(mode, -0.5) if i == 2 else -0.5
            stop = {"stop": True, "stop_type": "limit"} if i == n - 1 else {"stop": False}
            if mode == "noids":
                await send(writer, f"data: {json.dumps({'content': 'hello', **stop})}\n\n")
            else:
                await send(writer, event(body, place, first, i, logprob, **stop))


def event(
    body: dict[str, Any], place: int, first: int, i: int, logprob: float | None, ids: Any = None, **more: Any
) -> str:
    tokens = [first + i] if ids is None else ids
    told = [{"id": t, "logprob": logprob} for t in tokens]
    return f"data: {json.dumps({'index': place, 'tokens': tokens, 'completion_probabilities': told, **more})}\n\n"


async def completions(mode: str, body: dict[str, Any], writer: Any) -> None:
    choice: dict[str, Any] = {"index": 0, "text": "a", "finish_reason": None}
    if mode != "text":
        choice["token_ids"] = [7]
    if mode not in ("text", "bare"):
        choice["logprobs"] = {"token_logprobs": [-0.25]}
    for _ in range(body["max_tokens"]):
        await send(writer, f"data: {json.dumps({'choices': [choice]})}\n\n")
    await send(writer, f"data: {json.dumps({'choices': [{'index': 0, 'text': '', 'finish_reason': 'length'}]})}\n\n")
    await send(writer, "data: [DONE]\n\n")


async def send(writer: Any, text: str) -> None:
    writer.write(text.encode())
    await writer.drain()


async def reply(writer: Any, status: int, content: Any) -> None:
    text = json.dumps(content)
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n"
    await send(writer, f"{head}Connection: close\r\n\r\n{text}")


async def main() -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
