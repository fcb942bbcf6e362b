"""Traces of deep models from traces of shallow ones, where layers are alike."""
