"""The command for this machine, with reasons: what GPU, RAM and drives it has, what the model needs, what follows.

Facts are looked up in `gpus`, `model` and `drives`; `plan` is pure and turns them into servers and findings; `command`
writes servers down. Nothing here loads a model, touches a GPU or needs SGLang. Main thread.
"""
