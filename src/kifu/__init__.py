"""Reinforcement learning of LLM agents on records that can be trusted."""
