"""JAX: a few steps in its own profiler's detail, below tracekit's markers, on one timeline.

Run it: python examples/jax_loop.py     then: tracekit merge -o merged.json.gz traces/RUN
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from tracekit import JSONTraceHandler, Profiler
from tracekit.integrations.jax import JaxProfiler, JaxProfilerConfig


@jax.jit
def train_step(weights: jax.Array, batch: jax.Array) -> jax.Array:
    return weights - 0.01 * jax.grad(lambda w: jnp.mean((batch @ w - 1.0) ** 2))(weights)


if __name__ == "__main__":
    weights, batch = jnp.ones((256, 256)), jnp.ones((64, 256))
    with Profiler(trace_handlers=[JSONTraceHandler("traces/{run_id}/rank{rank}.json")]) as profiler:
        config = JaxProfilerConfig(profile_first_step=2, profile_n_steps=3)
        with JaxProfiler(config, log_path=f"traces/{profiler.process.run_id}") as jax_profiler:
            for step in range(1, 11):
                with profiler.marker("train step"):
                    weights = train_step(weights, batch).block_until_ready()
                jax_profiler.on_training_step(weights, 0, step, samples=len(batch))
    print(f"tracekit merge -o merged.json.gz traces/{profiler.process.run_id}")
