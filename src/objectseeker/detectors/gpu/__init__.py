"""The same on a GPU: all views of an image at once, masked, run and suppressed on the device."""
