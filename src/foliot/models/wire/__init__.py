"""The providers' wire formats as pure translation: requests to bodies, bodies and stream events to answers.

Called by the gateways beside this folder. No socket, no clock, no chance, so every format is tested on plain bytes.
"""
