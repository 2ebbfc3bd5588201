"""Static files from the ASGI server."""

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
