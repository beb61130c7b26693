"""XMP sidecars with alternative text: `photo.xmp` beside `photo.jpg`. The picture itself is not changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from tellapart import __version__
from tellapart.errors import DataError
from tellapart.files import check_folder, is_result, write_text

# The mark of a sidecar that tellapart wrote. Other programs that change one write their own.
TOOLKIT = 'x:xmptk="tellapart '

_SIDECAR = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" {toolkit}{version}">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about=""
    xmlns:dc="http://purl.org/dc/elements/1.1/"
    xmlns:Iptc4xmpCore="http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/">
   <dc:description><rdf:Alt><rdf:li xml:lang="x-default">{text}</rdf:li></rdf:Alt></dc:description>
   <Iptc4xmpCore:AltTextAccessibility>
    <rdf:Alt><rdf:li xml:lang="x-default">{text}</rdf:li></rdf:Alt>
   </Iptc4xmpCore:AltTextAccessibility>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>
"""


def sidecar(caption: str) -> str:
    """An XMP packet with a caption as description (`dc:description`) and as IPTC's alternative text."""
    # XML has no form for control characters and lone surrogates.
    clean = "".join(letter for letter in caption if letter.isprintable())
    return _SIDECAR.format(toolkit=TOOLKIT, version=__version__, text=escape(clean))


def sidecar_path(picture: Path) -> Path:
    return picture.with_suffix(".xmp")


def check_sidecars(pictures: Iterable[Path]) -> None:
    """Raise unless the sidecars of these pictures can be written: a sidecar of another program is never replaced."""
    owner: dict[Path, Path] = {}
    for picture in pictures:
        path = sidecar_path(picture)
        if path in owner:
            raise DataError(f"{path}: would belong to {owner[path].name} and to {picture.name}; rename one of them")
        owner[path] = picture
        if path.exists() and not is_result(path, TOOLKIT):
            raise DataError(f"{path}: exists and was not written by tellapart; move it away, or leave out --sidecars")
    for folder in dict.fromkeys(path.parent for path in owner):
        check_folder(folder)


def write_sidecars(captions: Sequence[tuple[Path, str]]) -> list[Path]:
    """Write the sidecar of each picture; gives their paths."""
    check_sidecars([picture for picture, _ in captions])
    for picture, caption in captions:
        write_text(sidecar_path(picture), sidecar(caption))
    return [sidecar_path(picture) for picture, _ in captions]
