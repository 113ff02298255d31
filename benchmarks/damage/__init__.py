"""Deployments damaged in the ways that people damage them, and honest ones that differ as much as they may."""
