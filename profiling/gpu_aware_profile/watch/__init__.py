"""Watch: slow, drifted and ill GPUs named from repeated sweeps, and what a site does about them."""
