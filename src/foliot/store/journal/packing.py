"""The bytes of an event as they are stored: shorter than its JSON, and the same again when they are read. Pure.

The first byte says how an event is stored. Nothing but its bytes at rest changes: links, streams, traces and exports
are of the JSON.

    {        the JSON itself, of an event that does not begin with its type
    , or }   without what its beginning repeats of its row, `{"type":"tool.started"`
    \\x00    the JSON behind this byte, when it begins with one of these signs
    \\x01    deflated
    \\x02    without the pin of its run, see `pin_of`
    \\x03    likewise, and deflated

Deflating a short text takes about 20 µs, which is more than the rest of its way into the store. So only long events
are, in which people, models and tools speak, and not the facts of a step.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from struct import Struct as Layout
from typing import Final

# Events from this length on are deflated. Those of a step that calls a tool have about 350 bytes.
LONG_EVENT: Final = 512
# No stored event is longer (see `LARGE` in stored_events.py: the texts of larger ones stand apart): what unpacks to
# more was not packed here.
MOST: Final = 1 << 20
_AS_IT_IS, _DEFLATED, _CUT, _CUT_AND_DEFLATED = 0x00, 0x01, 0x02, 0x03
_TAGLESS: Final = (0x2C, 0x7D)  # , and }
_SIGNS: Final = frozenset((_AS_IT_IS, _DEFLATED, _CUT, _CUT_AND_DEFLATED, *_TAGLESS))
# Where the second part of the pin belongs, in what is left of an event without it.
_place: Final = Layout(">I")
# A small window: to make ready a large one takes longer than to deflate the event. A long event is worth it.
_SMALL_WINDOW: Final = 4096
# What events have in common: words of people and the frame around them, the likeliest last. Part of the format: the
# events that are stored with it are read with it for ever, so it is never changed. Another would get another sign.
_COMMON: Final = (
    b" about above after again against all also although always amount and another answer any are as ask at available"
    b" back be because been before being below best better between both but by call can cannot case change check"
    b" could data day did different do does done down during each either else email end enough error even every"
    b" example file find first following for found from get give given go good great had has have he help her here"
    b" him his how however I I'm if important in information instead into is it it's its just keep know last later"
    b" least less let like list long look made make many may me mean message might more most much must my name need"
    b" needs new next no not nothing now number of off on once one only open or order other our out over own part"
    b" people place please point possible problem question rather read really result right said same say second see"
    b" set should since so some something state still such sure system take tell than that the their them then there"
    b" these they thing things think this those three through time to today too two under until up use used using"
    b" value very want was way we well were what when where whether which while who why will with within without"
    b' word work would year yes you your\\n\\n- **\\n1. \\"```https://www.com/'
    b" ing tion ment ed, s. The This It You We If In For. I and the of the in the to the you can is a for the on the "
    b'"error":{"code":"","reason":"","message":"","retryable":true,"unknown":true,"synthetic":"","tool_calls",'
    b'"arguments":"{\\"{"type":"tool.finished","result":{"type":"tool_result","call_id":"call_1_1","name":"",'
    b'"content":[{"type":"text","text":""}]},"seconds":0.000"contract":"v1"}"reasoning","text":""},{"type":"tool_call",'
    b'"id":"call_1_1","name":""identity":{"user":"","via":"http"}{"via":"python"},"equality":3,"after":"01","before":1'
    b',"session":"01","turn":1,"inputs":[1],"base":"01","summarised":1,"sized":1}"trace":"00-"'
    b'"usage":{"input_tokens":1,"output_tokens":1,"cached_tokens":"cost_usd":0.0},"source":"estimated"},"stop":"end",'
    b'"model":"","provider":"openai"},"seconds":0.00}{"type":"model.responded","step":1,"response":{"message":{"role":'
    b'"assistant","parts":[{"type":"text","text":"{"type":"run.created","input":[{"role":"user","parts":[{"type":"text"'
    b',"text":"'
)
# The first event of a run begins with its agent and its spec; behind what was said come the resources behind them.
_SAID, _NAMESPACE, _DEFINITIONS = b',"input":', b',"namespace":"', b',"definitions":{'


def pin_of(first: bytes) -> bytes:
    """Returns what the first event of a run has in common with those of all runs of its definition; may be blank.

    That is two of its parts, with a zero byte between them. Found by looking for names of fields: when a text in the
    event looks the same, the pin is one that no other run has, and nothing else is wrong.
    """
    said = first.find(_SAID)
    if said < 0:
        return b""
    definitions = first.find(_DEFINITIONS, said)
    begin = first.find(_NAMESPACE, said)  # left out when it is the default
    if definitions >= 0:
        end = first.find(b"}", definitions) + 1
        begin = definitions if begin < 0 else min(begin, definitions)
    else:
        begin = end = max(begin, 0)
    return b"%b\0%b" % (first[:said], first[begin:end])


def packed(type: str, event: bytes, pin: bytes = b"") -> bytes:
    """Returns the bytes to store of an event; with a `pin`, those that need it to be read."""
    if pin and (left := _without(event, pin)) is not None:
        return _deflated(_CUT_AND_DEFLATED, left) if len(left) >= LONG_EVENT else bytes((_CUT,)) + left
    if len(event) >= LONG_EVENT and len(shorter := _deflated(_DEFLATED, event)) < len(event):
        return shorter
    tag = _tag(type)
    if event.startswith(tag) and (rest := event[len(tag) :]) and rest[0] in _TAGLESS:
        return rest
    return bytes((_AS_IT_IS,)) + event if event and event[0] in _SIGNS else event


def unpacked(type: str, stored: bytes, pin: bytes = b"") -> bytes:
    """Returns the event. Bytes that were changed in the store come back as anything but what was recorded."""
    sign = stored[0] if stored else 0x7B
    if sign not in _SIGNS:
        return stored
    if sign in _TAGLESS:
        return _tag(type) + stored
    rest = stored[1:]
    if sign in (_DEFLATED, _CUT_AND_DEFLATED):
        try:
            rest = zlib.decompressobj(-zlib.MAX_WBITS, _COMMON).decompress(rest, MOST)
        except zlib.error:
            return stored
    return _with(rest, pin) if sign in (_CUT, _CUT_AND_DEFLATED) else rest


def _without(event: bytes, pin: bytes) -> bytes | None:
    head, _, tail = pin.partition(b"\0")
    place = event.find(tail, len(head))
    if place < 0 or not event.startswith(head):
        return None
    return _place.pack(place - len(head)) + event[len(head) : place] + event[place + len(tail) :]


def _with(left: bytes, pin: bytes) -> bytes:
    if len(left) < _place.size:
        return left
    head, _, tail = pin.partition(b"\0")
    place = _place.size + _place.unpack_from(left)[0]
    return b"".join((head, left[_place.size : place], tail, left[place:]))


def _deflated(sign: int, event: bytes) -> bytes:
    bits, memory = (-12, 5) if len(event) <= _SMALL_WINDOW else (-15, 8)
    writer = zlib.compressobj(1, zlib.DEFLATED, bits, memory, zlib.Z_DEFAULT_STRATEGY, _COMMON)
    return b"%c%b%b" % (sign, writer.compress(event), writer.flush())


@lru_cache(maxsize=256)
def _tag(type: str) -> bytes:
    return b'{"type":"%b"' % type.encode()
