"""Non-streaming calls of text models (embeddings, reranking): embeddings and scores of
documents.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from ekiden.runtime.errors import RequestError
from ekiden.serve.engine import ServingEngine
from ekiden.serve.failure_reasons import to_request_error
from ekiden.serve.generation import text_thread_pool
from ekiden.serve.repository import ModelVersion

__all__ = ["call_text_model"]

Result = TypeVar("Result")


async def call_text_model(
    engine: ServingEngine, name: str, version: ModelVersion, call: Callable[[], Result]
) -> Result:
    """Run a model function on one of its threads, with metrics and logging, and return its result.

    Args:
        engine: The server's engine.
        name: The model's name.
        version: Its version, which has the request as a user meanwhile.
        call: Runs the model.

    Raises RequestError for a full queue, inputs that the model refuses, and where its time is over.
    """
    if version.num_users >= version.config.queue:
        raise RequestError(f"{version.num_users} answers are under way already", "busy", 1.0)
    started, outcome = time.perf_counter(), "ok"
    engine.begin_request()
    version.add_user()
    try:
        async with asyncio.timeout(version.config.seconds):
            return await asyncio.wrap_future(text_thread_pool(version).submit(call))
    except TimeoutError:
        outcome = "deadline"
        raise RequestError("the time of the request is over", "deadline") from None
    except asyncio.CancelledError:
        outcome = "gone"
        raise
    except Exception as error:  # of code that is not ours
        client_error = to_request_error(error)
        outcome = client_error.reason
        if outcome == "failed":
            engine.log.log_failure(name, error)
        raise client_error from error
    finally:
        version.remove_user()
        engine.end_request()
        seconds = time.perf_counter() - started
        engine.metrics.count_request(name, outcome, seconds)
        engine.log.log_request(name, outcome, seconds)
