"""Other engines, started and watched by `k3agent serve`."""
