"""How long nodes take from ready to a usable GPU, by the way in which their driver gets there."""
