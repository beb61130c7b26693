"""The page and the service: `serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tellapart.cli.base import LOOPBACK, PORT, HostOption, ModelOption, PortOption, TokenOption, app
from tellapart.cli.photos import PANEL


@app.command(rich_help_panel=PANEL)
def serve(
    collection: Annotated[
        str | None, typer.Argument(help="Photographs to search: a folder or address of 'tellapart index'.")
    ] = None,
    model: ModelOption = None,
    retriever: Annotated[
        Path | None,
        typer.Option(help="A retriever's run or model folder; by default that of the collection, or the shipped one."),
    ] = None,
    host: HostOption = LOOPBACK,
    port: PortOption = PORT,
    token: TokenOption = None,
    max_upload_mb: Annotated[int, typer.Option(min=1, max=1024, help="Largest request, in MB.")] = 32,
    max_pixels: Annotated[
        int, typer.Option(min=10_000, max=100_000_000, help="Most pixels of a picture, checked before decoding.")
    ] = 40_000_000,
    max_pictures: Annotated[int, typer.Option(min=1, max=256, help="Most pictures of a request.")] = 16,
    queue: Annotated[int, typer.Option(min=1, max=100_000, help="Pictures that may wait; more are refused.")] = 256,
    batch: Annotated[int, typer.Option(min=1, max=1024, help="Pictures that go through the models at once.")] = 32,
    hold: Annotated[int, typer.Option(min=1, max=100_000, help="Uploads to keep in memory for later requests.")] = 300,
    forget_minutes: Annotated[float, typer.Option(min=0.1, help="An unused upload is dropped after so long.")] = 60,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to send a request, or to take an answer.")] = 30,
) -> None:
    """Serve the page: captions, telling apart and search in the browser, and the same over HTTP.

    Only programs of this machine can connect, unless --host and --token are given. Nothing is stored. Ctrl-C or SIGTERM
    stops it when the accepted requests are answered.
    """
    from tellapart.serve.app import create_app
    from tellapart.serve.settings import ServeSettings
    from tellapart.serve.web import address_of, check_access, listen, run

    check_access(host, token)
    settings = ServeSettings(
        collection=collection,
        models=tuple(model or [Path("shipped")]),
        retriever=retriever,
        token=token,
        max_upload=max_upload_mb << 20,
        max_pixels=max_pixels,
        max_pictures=max_pictures,
        queue=queue,
        batch=batch,
        hold=hold,
        forget_minutes=forget_minutes,
        seconds=timeout,
    )
    application = create_app(settings)
    with listen(host, port) as opened:
        print(f"{address_of(opened, token)} (Ctrl-C stops)", flush=True)
        run(application, opened, application.state.service.status)
