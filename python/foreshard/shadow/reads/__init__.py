"""What a script reads of the device, on which nothing is computed: zeros, but for what is known otherwise."""
