"""Built-in environments, one module each, independent of one another. `kifu.envs.registry` lists them."""
