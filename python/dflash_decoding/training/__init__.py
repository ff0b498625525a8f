"""Training of DFlash drafters on a target's own answers. The way of the data: chats, taps, model, loss, trainer."""
