"""Command line ``gpu-aware``: one module per command with options and texts; work imported late.

``entry``
    Entry points of the programs.
``main``, ``run``
    The group of commands; late imports, exit codes and errors.
``context``, ``options``, ``output``
    Global options; number types; tables for users, JSON for programs.
``explain``, ``queue``, ``status``
    Decisions, waiting jobs, state of the selector.
``selectd``, ``release``
    The daemon, and release by hand.
``setup``, ``rollout``, ``doctor``
    Installation, rollout, and checks of a live cluster.
``place``, ``simulate``, ``report``
    Placement of one request, simulation of a trace, report on its results.
"""
