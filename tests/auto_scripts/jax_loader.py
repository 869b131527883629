"""JAX on CPU with step annotations around the batches of torch's data loader; prints each loss exactly."""

import jax
import jax.numpy as jnp
from torch.utils.data import DataLoader


@jax.jit
def train(weights: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((batch @ w - 1.0) ** 2))(weights)
    return weights - 0.01 * gradient, loss


weights = jnp.ones((8, 4))
for step, items in enumerate(DataLoader([float(number) for number in range(5 * 16 * 8)], batch_size=16 * 8)):
    with jax.profiler.StepTraceAnnotation("train", step_num=step):
        weights, loss = train(weights, jnp.asarray(items.numpy()).reshape(16, 8))
        print(float(loss).hex())
