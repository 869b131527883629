"""On-demand capture: a running job records a few batches when it is asked to.

A *control folder* that all ranks can reach holds small JSON documents::

    control/request.json            the current request, for all ranks or for some
    control/ranks/rank00003.json    the status of rank 3: its batch, its step time and its capture

A common start takes two rounds, because no rank knows the progress of the others. The coordinator writes a request with
``together``, each rank answers with its batch and step time, and the coordinator writes the same request again with a
batch or a time that lies ahead of all ranks. A request by hand needs one round:
``echo '{"steps": 5, "start_batch": 1000}' > request.json``.

On each rank, `on_demand` serves the requests, and `state_machine` returns the action of each batch.
"""
