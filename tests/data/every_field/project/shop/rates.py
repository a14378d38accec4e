FULL = "full"
