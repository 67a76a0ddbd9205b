"""Runners: agents that are external programs. A runner is a gateway whose model is a program in a fence."""
