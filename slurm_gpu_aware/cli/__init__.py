"""The command ``gpu-aware``: options in one module per command, work imported late.

``entry``
    Where the programs start.
``main``
    The group, the exit codes, what an error means to the outside.
``context``
    Global options.
``output``
    Tables for people, JSON for programs.
``reading``
    The ledger as an administrator and as an ordinary user sees it.
``explain``, ``queue``, ``status``
    What was decided, what waits, how it goes.
``selectd``, ``release``
    The daemon, and the gate opened by hand.
``setup``, ``doctor``
    Install (work in ``install``, ``files``), and check a live cluster (``checks``).
``place``
    What the policies would answer for one request.
"""
