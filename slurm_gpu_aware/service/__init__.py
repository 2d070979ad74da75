"""The selector daemon: what it reads each round, how it places, and how it never loses a job.

- `selectd`: the main loop; `events`: what starts a round; `heartbeat`: keeps the gate closed
- `rounds`: one round; `watch`: what became of placed jobs; `placing`: the three steps;
  `recovery`: parking again; `books`: the ledger, which may fail without stopping anything
"""
