"""What Django answers by itself under /api/v1 (no such route, wrong method, refused host) becomes a problem document too."""

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import sync_and_async_middleware

from controlplane.api.problems import CONTENT_TYPE, Problem, phrase, respond

PREFIX = "/api/v1/"
DETAILS = {
    404: "there is no such route; /api/v1/openapi.json lists them",
    405: "this route does not take that method; see the Allow header",
}


@sync_and_async_middleware
def problem_middleware(get_response):
    def serve(request):
        return _as_problem(request, _refused(request) or get_response(request))

    async def serve_async(request):
        return _as_problem(request, _refused(request) or await get_response(request))

    return serve_async if iscoroutinefunction(get_response) else serve


def _refused(request: HttpRequest) -> HttpResponse | None:
    # Postgres texts cannot hold it, so that any filter would fail with it.
    if request.path.startswith(PREFIX) and ("\0" in request.path or "%00" in request.META.get("QUERY_STRING", "")):
        return respond(request, Problem(400, phrase(400), "the address contains a null character; remove it"))
    return None


def _as_problem(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    if not request.path.startswith(PREFIX) or response.status_code < 400 or response.get("Content-Type", "").startswith(CONTENT_TYPE):
        return response
    status = response.status_code
    answer = respond(request, Problem(status, phrase(status), DETAILS.get(status, "")))
    for name in ("Allow", "Retry-After"):
        if name in response:
            answer[name] = response[name]
    return answer
