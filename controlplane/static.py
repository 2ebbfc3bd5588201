"""Static files from the ASGI server."""

from django.conf import settings
from django.http import HttpResponse
from whitenoise.middleware import WhiteNoiseMiddleware


class StaticFilesMiddleware(WhiteNoiseMiddleware):
    """WhiteNoise with whole answers: it streams synchronously, which Django under ASGI warns of and then reads whole all the same."""

    @staticmethod
    def serve(static_file, request):
        streamed = WhiteNoiseMiddleware.serve(static_file, request)
        answer = HttpResponse(b"".join(streamed.streaming_content), status=streamed.status_code)
        del answer["Content-Type"]
        for key, value in streamed.items():
            answer[key] = value
        streamed.close()
        return answer


class StaticFiles:
    """ASGI middleware: answers for the collected files before Django does, and leaves every other path to `app`.

    A page with an empty cache asks for a dozen files at once, and what it needs to paint is among them; through Django each takes a thread
    and the whole chain of middleware. While files are served from where they are written (DEBUG), all are left to Django.
    """

    HEADERS = (("X-Content-Type-Options", "nosniff"), ("X-Frame-Options", "DENY"), ("Referrer-Policy", "same-origin"))

    def __init__(self, app):
        self.app = app
        self.files = {} if settings.DEBUG else WhiteNoiseMiddleware().files

    async def __call__(self, scope, receive, send):
        file = self.files.get(scope["path"]) if scope["type"] == "http" else None
        if file is None:
            return await self.app(scope, receive, send)
        given = {f"HTTP_{name.decode('latin-1').upper().replace('-', '_')}": value.decode("latin-1") for name, value in scope["headers"]}
        answer = file.get_response(scope["method"], given)
        body = b""
        if answer.file is not None:
            with answer.file:
                body = answer.file.read()
        headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in (*answer.headers, *self.HEADERS)]
        await send({"type": "http.response.start", "status": int(answer.status), "headers": headers})
        await send({"type": "http.response.body", "body": body})
