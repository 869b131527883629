"""JAX on CPU with step annotations, and an annotation inside of the steps; prints each loss exactly."""

import jax
import jax.numpy as jnp


@jax.jit
def train(weights: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((batch @ w - 1.0) ** 2))(weights)
    return weights - 0.01 * gradient, loss


weights = jnp.ones((8, 4))
for step in range(5):
    with jax.profiler.TraceAnnotation("load"):
        batch = jax.random.normal(jax.random.key(step), (16, 8))
    with jax.profiler.StepTraceAnnotation("train", step_num=step):
        weights, loss = train(weights, batch)
        with jax.profiler.TraceAnnotation("wait"):
            print(float(loss).hex())
