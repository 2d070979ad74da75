"""Installation and removal: configuration files, rollout node by node, checks of doctor."""
