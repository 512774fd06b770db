"""Measurements that a user can repeat on their own model and peers."""
