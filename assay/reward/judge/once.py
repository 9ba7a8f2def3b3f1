"""A verifier that asks a service, called plainly: by `assay score`, or in a worker."""

from __future__ import annotations

import asyncio

from assay.reward.verifier import AsyncVerifier, Case, Judgement


def once(verifier: AsyncVerifier, case: Case) -> Judgement:
    """Judge one case in an event loop made for it, and close the connections. Not for use inside a running loop."""

    async def asked() -> Judgement:
        try:
            return (await verifier.judge([case]))[0]
        finally:
            await verifier.close()

    return asyncio.run(asked())
