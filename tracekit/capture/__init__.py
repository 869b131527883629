"""On-demand capture: how a running job is told from outside to record, and how it answers.

A *control folder*, which all ranks and whoever presses the button can reach, holds two kinds of small JSON documents::

    control/request.json            the one request that counts now; replaced as a whole
    control/ranks/rank00003.json    what rank 3 does about it, and where it is in its training

A common start takes two rounds, because no rank knows how far the others are: whoever presses the button writes a request
that says ``together``; each rank answers with its batch and the time a batch takes; then the same request is written again
with a batch, or a time, that lies ahead of all of them. A request by hand needs no such partner:
``echo '{"steps": 5, "start_batch": 1000}' > request.json``.

`documents` are the values, `folder` reads and writes them, `drive` presses the button. `tracekit capture` and whatever else
has a button use `Drive`; the recorder's side is `tracekit.recording.on_demand`.
"""
