"""The gateway for Google's Gemini API."""

from __future__ import annotations

from base64 import b64encode
from urllib.parse import urlsplit

from foliot.kernel.messages import Media, Message, ModelRequest, Text
from foliot.models.base import ModelGarbage, Transcript
from foliot.models.config import GatewayConfig
from foliot.models.gateways.http import COMMON_OPTIONS, HttpGateway
from foliot.models.wire import embeddings
from foliot.models.wire.gemini import GeminiWire
from foliot.models.wire.opaque import account_of
from foliot.models.wire.transcription import WORDS

DEFAULT_URL = "https://generativelanguage.googleapis.com/v1beta"


class GeminiGateway(HttpGateway):
    """POST {base}/models/{model}:generateContent, or :streamGenerateContent, with the key in `x-goog-api-key`.

    Option `auth`: "key" (default) or "bearer", for an address that wants an access token. The key never stands in the
    URL, where logs would keep it. Raises `InvalidInput` for an option that cannot be used.
    """

    OPTIONS = frozenset({"auth"}) | COMMON_OPTIONS
    FAMILY = "gemini"
    EMBEDDINGS = embeddings.GEMINI

    def __init__(self, config: GatewayConfig) -> None:
        auth: dict[str, str] = {}
        way = config.choice("auth", ("key", "bearer"), "key")
        if config.api_key and way == "bearer":
            auth["Authorization"] = f"Bearer {config.api_key}"
        elif config.api_key:
            auth["x-goog-api-key"] = config.api_key
        wire = GeminiWire(config.profiles(self.FAMILY))
        base_url = config.base_url or DEFAULT_URL
        super().__init__(config, wire, base_url=base_url, auth=auth)
        if way == "bearer" and not config.text("account"):
            # A token is renewed every hour; whose it is stands in the address, as the project.
            self._account = account_of(base_url, urlsplit(base_url).path)
            self._accounts.add(self._account)

    async def transcribe(
        self, audio: bytes, *, media_type: str = "", model: str = "", language: str = "", prompt: str = ""
    ) -> Transcript:
        """Transcribes audio by asking a model that hears to write it down; see `Transcriber.transcribe`."""
        model = model or self.config.model
        kind = self._checked_audio(audio, media_type, model)
        asked = [WORDS, f"The language is {language}." if language else "", prompt]
        said = (Text(" ".join(filter(None, asked))), Media(kind, data=b64encode(audio).decode()))
        got = await self.respond(ModelRequest(model, (Message("user", said),)))
        if got.stop != "end":
            words = f"did not write the whole recording down: it stopped by {got.stop}"
            raise ModelGarbage(f"model provider {self.config.provider!r} {words}", provider=self.config.provider)
        return Transcript(got.message.text.strip(), got.usage, got.model or model, self.config.provider)
