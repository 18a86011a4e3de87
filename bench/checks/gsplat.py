"""Does gsplat rasterize what the formulas say, with gradients? Exact results: plain products in FP64."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# This file has the name of a package, for which its folder must not stand in.
sys.path[:] = [str(HERE.parent), *(entry for entry in sys.path if Path(entry or ".").resolve() != HERE)]

from judging import PREFIX, Skip, inside, run  # noqa: E402 - the path comes first

TILE = 16
SIZES = ((53, 37), (64, 48))  # width and height: no whole number of tiles, and one
SEEN, OPAQUE = 1 / 255, 1e-4  # a Gaussian below counts for nothing; a pixel this dark takes no more
LOOSE = 2e-3  # of a gradient that thousands of pixels add to in FP32, and exp by --use_fast_math


def check_import() -> str:
    import gsplat
    from gsplat import csrc

    for module in (gsplat, csrc):
        assert inside(module.__file__, PREFIX), f"{module.__file__} is not inside {PREFIX}"
    return f"gsplat {gsplat.__version__} with compiled kernels from inside the environment"


def device() -> str:
    import torch

    if not torch.cuda.is_available():
        raise Skip("no GPU here")
    return "cuda"


def rotation(quats: Any) -> Any:
    """Rotation matrices [..., 3, 3] of quaternions w, x, y, z: 1 + 2 w K + 2 K K; K is the cross product."""
    import torch

    w, x, y, z = torch.nn.functional.normalize(quats, dim=-1).unbind(-1)
    zero = torch.zeros_like(w)
    cross = torch.stack((zero, -z, y, z, zero, -x, -y, x, zero), -1).unflatten(-1, (3, 3))
    return torch.eye(3, dtype=quats.dtype) + 2 * w[..., None, None] * cross + 2 * cross @ cross


def covariance(quats: Any, scales: Any) -> Any:
    axes = rotation(quats) * scales[..., None, :]
    return axes @ axes.transpose(-1, -2)


def upper(matrices: Any) -> Any:
    """xx, xy and yy of symmetric matrices [..., 2, 2]."""
    import torch

    return torch.stack((matrices[..., 0, 0], matrices[..., 0, 1], matrices[..., 1, 1]), -1)


def harmonics(degree: int, directions: Any, coefficients: Any) -> Any:
    """Real spherical harmonics with the Condon-Shortley phase, by the recurrences of Legendre's functions."""
    import torch

    x, y, z = torch.nn.functional.normalize(directions, dim=-1).unbind(-1)
    basis: dict[tuple[int, int], Any] = {}
    real, imaginary = torch.ones_like(x), torch.zeros_like(x)  # of (x + iy)^m
    for m in range(degree + 1):
        before = torch.zeros_like(z)
        legendre = torch.full_like(z, (-1) ** m * math.prod(range(1, 2 * m, 2)))
        for order in range(m, degree + 1):
            shares = (2 * order + 1) / (4 * math.pi) * math.factorial(order - m) / math.factorial(order + m)
            factor = math.sqrt(shares * (2 if m else 1)) * legendre
            basis[order, m] = factor * real
            if m:
                basis[order, -m] = factor * imaginary
            following = ((2 * order + 1) * z * legendre - (order + m) * before) / (order + 1 - m)
            before, legendre = legendre, following
        real, imaginary = real * x - imaginary * y, real * y + imaginary * x
    rows = [basis[order, m] for order in range(degree + 1) for m in range(-order, order + 1)]
    return (torch.stack(rows, -1)[..., None] * coefficients[..., : len(rows), :]).sum(-2)


def image_points(camera: str, points: Any, intrinsics: Any) -> Any:
    """Pixels [C, N, 2] of points [C, N, 3] in front of C cameras."""
    import torch

    focal = torch.stack((intrinsics[:, 0, 0], intrinsics[:, 1, 1]), -1)[:, None]
    flat, depth = points[..., :2], points[..., 2:]
    if camera == "pinhole":
        flat = flat / depth
    elif camera == "fisheye":
        radius = flat.norm(dim=-1, keepdim=True)
        flat = flat * torch.atan2(radius, depth) / radius
    return focal * flat + intrinsics[:, None, :2, 2]


def project(camera: str, means: Any, covariances: Any, views: Any, intrinsics: Any) -> tuple[Any, ...]:
    """Means, depths, inverse covariances (xx, xy, yy) and compensations in the image; all differentiable."""
    import torch

    turn = views[:, None, :3, :3]
    points = (turn @ means[..., None])[..., 0] + views[:, None, :3, 3]
    pixels = image_points(camera, points, intrinsics)
    # Each pixel depends on its own point alone, so one gradient of a sum is a row of every Jacobian.
    rows = [torch.autograd.grad(pixels[..., row].sum(), points, create_graph=True)[0] for row in (0, 1)]
    slope = torch.stack(rows, -2) @ turn
    sharp = slope @ covariances @ slope.transpose(-1, -2)
    blurred = sharp + 0.3 * torch.eye(2, dtype=means.dtype)
    compensations = (torch.linalg.det(sharp) / torch.linalg.det(blurred)).sqrt()
    return pixels, points[..., 2], upper(torch.linalg.inv(blurred)), compensations


def scene(width: int, height: int, count: int = 61, zoom: float = 0.8) -> tuple[Any, ...]:
    """Means, quaternions, scales, opacities of Gaussians that two cameras see: numbers of FP32 as FP64."""
    import torch

    numbers = torch.Generator().manual_seed(count)

    def uniform(low: float, high: float, *shape: int) -> Any:
        return (low + (high - low) * torch.rand(shape, generator=numbers)).double()

    means = torch.cat((uniform(-1, 1, count, 2), uniform(3, 6, count, 1)), -1)
    quats, scales = uniform(-1, 1, count, 4), uniform(0.03, 0.3, count, 3)
    views = torch.eye(4).double().repeat(2, 1, 1)
    views[1, :3, :3] = rotation(torch.tensor([1.0, 0.05, -0.1, 0.08]).double())
    views[1, :3, 3] = torch.tensor([0.2, -0.1, 0.4])
    views = views.float().double()
    wide = zoom * width
    intrinsics = (
        torch.tensor([[wide, 0, width / 2], [0, wide, height / 2], [0, 0, 1]]).double().repeat(2, 1, 1)
    )
    return means, quats, scales, uniform(0.1, 0.9, count), views, intrinsics.float().double()


def composite(alphas: Any, colors: Any, background: Any) -> tuple[Any, Any, Any]:
    """Pixels [C, P, channels] and opacities of Gaussians [C, P, N] from near to far, and which are sure.

    Not sure is where rounding decides if a Gaussian still counts.
    """
    import torch

    seen = torch.where(alphas >= SEEN, alphas.clamp(max=0.999), 0.0)
    behind = (1 - seen).cumprod(-1)
    before = torch.cat((torch.ones_like(behind[..., :1]), behind[..., :-1]), -1)
    weights = seen * before * (behind > OPAQUE)
    cover = weights.sum(-1, keepdim=True)
    close = ((alphas / SEEN - 1).abs() < 1e-3) | ((behind / OPAQUE - 1).abs() < 1e-2)
    return weights @ colors + (1 - cover) * background[:, None], cover, ~close.any(-1)


def grid(width: int, height: int) -> Any:
    """Centres of all pixels [P, 2], row by row."""
    import torch

    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack((columns, rows), -1).reshape(-1, 2).double() + 0.5


def flat_alphas(means: Any, conics: Any, opacities: Any, pixels: Any) -> Any:
    x, y = (pixels[:, None] - means[:, None]).unbind(-1)
    xx, xy, yy = conics[:, None].unbind(-1)
    return opacities[:, None] * (-(xx * x * x + yy * y * y) / 2 - xy * x * y).exp()


def compare_all(
    errors: Any, name: str, parts: str, mine: Any, exact: Any, allowed: float | None = None
) -> None:
    for part, one, true in zip(parts.split(), mine, exact, strict=True):
        errors.compare(f"{name}: {part}", one, true, allowed=allowed)


def compare_both(
    errors: Any, name: str, parts: str, inputs: dict[str, Any], ours: Any, exact: Any,
    *, where: str, kind: Any = None, allowed: float | None = None,
) -> None:  # fmt: skip
    """Results, named by `parts`, and gradients of `inputs`; a mask after the exact ones says where."""
    import torch
    from numerics import leaves, normal, spoil

    wide = leaves(*inputs.values(), dtype=torch.float64)
    narrow = leaves(*inputs.values(), dtype=kind or torch.float32, device=where)
    true = list(exact(*wide))
    sure = true.pop() if true[-1].dtype == torch.bool else torch.ones(true[0].shape[:-1], dtype=torch.bool)
    assert sure.double().mean() > 0.5, f"{name}: rounding decides in {1 - sure.double().mean():.0%}"
    spoil(*narrow, *narrow)
    mine = ours(*narrow)
    directions = [
        normal(*each.shape, seed=at) * (sure[..., None] if each.dim() > sure.dim() else sure)
        for at, each in enumerate(true)
    ]
    spoil(*narrow, *narrow)
    given = [each.to(where, narrow[0].dtype) for each in directions]
    found = [one.cpu()[sure] for one in mine], torch.autograd.grad(mine, narrow, given)
    compare_all(errors, name, parts, found[0], [one[sure] for one in true], allowed)
    slopes = torch.autograd.grad(true, wide, directions)
    compare_all(errors, name, " ".join(f"d{each}" for each in inputs), found[1], slopes, LOOSE)


def check_reference() -> str:
    """The formulas here and those in gsplat's own Python code agree in FP64, on the CPU."""
    import torch
    from gsplat.cuda import _torch_impl as own
    from gsplat.cuda._torch_impl_2dgs import _fully_fused_projection_2dgs
    from numerics import Errors, normal

    errors, size = Errors(), SIZES[0]
    means, quats, scales, _, views, intrinsics = scene(*size)
    shapes = covariance(quats, scales)
    errors.compare("covariance", own._quat_scale_to_covar_preci(quats, scales)[0], shapes)
    directions, coefficients = normal(33, 3), normal(33, 25, 3, seed=1)
    unit = torch.nn.functional.normalize(directions, dim=-1)
    for degree in range(5):
        theirs = own._spherical_harmonics(degree, unit, coefficients)
        errors.compare(
            f"harmonics {degree}", theirs, harmonics(degree, directions, coefficients), allowed=1e-6
        )
    means.requires_grad_()
    for camera in ("pinhole", "ortho", "fisheye"):
        theirs = own._fully_fused_projection(
            means, shapes, views, intrinsics, *size, calc_compensations=True, camera_model=camera
        )
        exact = project(camera, means, shapes, views, intrinsics)
        compare_all(errors, camera, "means depths conics compensations", theirs[1:], exact, 1e-4)
    flat = _fully_fused_projection_2dgs(means, quats, scales, views, intrinsics, *size)
    compare_all(
        errors, "2DGS", "depths transforms", flat[2:4], transforms(means, quats, scales, views, intrinsics)
    )
    image = blobs(*size, 9)
    keys, order = own._isect_tiles(image[0], image[3], image[4], TILE, *across(*size))[1:]
    offsets = own._isect_offset_encode(keys, 2, *across(*size))
    return f"gsplat's Python code: {errors}; {match_tiles(image, offsets, order, *size)} pairs with tiles"


def check_covariances() -> str:
    import torch
    from gsplat import quat_scale_to_covar_preci
    from numerics import Errors

    where, errors = device(), Errors()
    for count, kind in itertools.product((1, 255, 1000), (torch.float32, torch.float64)):
        _, quats, scales, *_ = scene(64, 64, count)
        compare_both(
            errors, f"{count}", "covariance precision", {"Quats": quats, "Scales": scales},
            quat_scale_to_covar_preci, lambda q, s: (covariance(q, s), covariance(q, 1 / s)),
            where=where, kind=kind, allowed=1e-4,
        )  # fmt: skip
    return str(errors)


def check_harmonics() -> str:
    from gsplat import spherical_harmonics
    from numerics import Errors, normal

    where, errors = device(), Errors()
    for degree, count in itertools.product(range(1, 5), (1, 257)):
        inputs = {
            "Directions": normal(count, 3).float(),
            "Coefficients": normal(count, 25, 3, seed=1).float(),
        }
        compare_both(
            errors, f"degree {degree}", "colors", inputs,
            lambda d, c, degree=degree: [spherical_harmonics(degree, d, c)],
            lambda d, c, degree=degree: [harmonics(degree, d, c)], where=where,
        )  # fmt: skip
    return str(errors)


def compare_projection(errors: Any, where: str, size: tuple[int, int], camera: str, *, packed: bool) -> None:
    from gsplat import fully_fused_projection

    means, quats, scales, _, *lenses = scene(*size, zoom=0.2 if camera == "ortho" else 0.8)
    placed = [each.float().to(where) for each in lenses]

    def ours(m: Any, q: Any, s: Any) -> Any:
        found = fully_fused_projection(
            m, None, q, s, *placed, *size, packed=packed, calc_compensations=True, camera_model=camera
        )
        found = found[-5:]
        assert (found[0] > 0).all(), f"{camera}: {int((found[0] <= 0).sum())} Gaussians not seen"
        return [each.reshape(2, len(m), *each.shape[2 - packed :]) for each in found[1:]]

    def exact(m: Any, q: Any, s: Any) -> Any:
        return project(camera, m, covariance(q, s), *lenses)

    name = f"{camera} {size[0]}x{size[1]}{', packed' if packed else ''}"
    inputs = {"Means": means, "Quats": quats, "Scales": scales}
    parts = "means depths conics compensations"
    compare_both(errors, name, parts, inputs, ours, exact, where=where, allowed=5e-4)


def check_projection() -> str:
    """Three cameras, one entry for each pair of camera and Gaussian, and packed."""
    from numerics import Errors

    where, errors = device(), Errors()
    for size, camera, packed in itertools.product(SIZES, ("pinhole", "ortho", "fisheye"), (False, True)):
        compare_projection(errors, where, size, camera, packed=packed)
    return str(errors)


def blobs(width: int, height: int, count: int) -> tuple[Any, ...]:
    """Gaussians in two images: means, inverse covariances, opacities, radii, depths; the last is nearest."""
    import torch

    numbers = torch.Generator().manual_seed(count)
    means = torch.rand(2, count, 2, generator=numbers) * torch.tensor([width, height])
    axes = torch.randn(2, count, 2, 2, generator=numbers).double() * 3
    spread = axes @ axes.transpose(-1, -2) + torch.eye(2)
    opacities = 0.05 + 0.9 * torch.rand(2, count, generator=numbers)
    radii = (3.33 * spread.diagonal(dim1=-2, dim2=-1).sqrt()).ceil().int() + 1
    depths = torch.arange(count, 0, -1).float().repeat(2, 1)
    return means, upper(torch.linalg.inv(spread)).float(), opacities, radii, depths


def across(width: int, height: int) -> tuple[int, int]:
    return -(-width // TILE), -(-height // TILE)


def tiled(means: Any, radii: Any, depths: Any, width: int, height: int) -> tuple[Any, Any]:
    """Where the list of each tile begins, and the lists."""
    from gsplat import isect_offset_encode, isect_tiles

    keys, order = isect_tiles(means, radii, depths, TILE, *across(width, height))[1:]
    return isect_offset_encode(keys, len(means), *across(width, height)), order


def match_tiles(image: tuple[Any, ...], offsets: Any, order: Any, width: int, height: int) -> int:
    """Compare with plain loops; returns how many pairs of a Gaussian and a tile there are."""
    means, _, _, radii, _ = image
    assert offsets.shape == (2, *reversed(across(width, height))), f"{tuple(offsets.shape)} offsets"
    begins = [*offsets.flatten().tolist(), len(order)]
    for at, (picture, row, column) in enumerate(itertools.product(*map(range, offsets.shape))):
        low, high = ((means[picture] + sign * radii[picture]) / TILE for sign in (-1, 1))
        place = means.new_tensor([column, row])
        hit = ((low < place + 1) & (high > place)).all(-1)
        wanted = [picture * len(hit) + one for one in reversed(range(len(hit))) if hit[one]]
        found = order[begins[at] : begins[at + 1]].tolist()
        assert found == wanted, f"{width}x{height}, tile {row},{column}: {found[-5:]}, plainly {wanted[-5:]}"
    return len(order)


def check_tiles() -> str:
    """Which Gaussians are in which tile, from near to far: with plain loops."""
    where, told = device(), 0
    for size, count in itertools.product(SIZES, (1, 37, 400)):
        image = blobs(*size, count)
        placed = [image[at].to(where) for at in (0, 3, 4)]
        told += match_tiles(image, *(each.cpu() for each in tiled(*placed, *size)), *size)
    return f"{told} pairs of a Gaussian and a tile: as plain loops find"


def compare_rasters(errors: Any, where: str, size: tuple[int, int], channels: int, count: int) -> None:
    from gsplat import rasterize_to_pixels
    from numerics import normal

    means, conics, opacities, radii, depths = blobs(*size, count)
    pixels = grid(*size)

    def exact(m: Any, c: Any, k: Any, o: Any, b: Any) -> Any:
        near = (each.flip(1) for each in (m, c, o))  # composited from near to far
        return composite(flat_alphas(*near, pixels), k.flip(1), b)

    def ours(m: Any, c: Any, k: Any, o: Any, b: Any) -> Any:
        lists = tiled(m.detach(), radii.to(where), depths.to(where), *size)
        return [
            each.flatten(1, 2) for each in rasterize_to_pixels(m, c, k, o, *size, TILE, *lists, backgrounds=b)
        ]

    inputs = {
        "Means": means, "Conics": conics, "Colors": normal(2, count, channels).float(),
        "Opacities": opacities, "Background": normal(2, channels, seed=1).float(),
    }  # fmt: skip
    name = f"{size[0]}x{size[1]}, {channels} channels, {count} Gaussians"
    compare_both(errors, name, "colors opacities", inputs, ours, exact, where=where, allowed=5e-4)


def check_rasterization() -> str:
    """One to 33 channels, over a background."""
    from numerics import Errors

    where, errors = device(), Errors()
    for size, (channels, count) in itertools.product(SIZES, ((1, 1), (3, 37), (5, 400), (33, 61))):
        compare_rasters(errors, where, size, channels, count)
    return str(errors)


def facing(size: tuple[int, int], where: str) -> tuple[list[Any], list[Any], list[Any]]:
    """Means, quaternions, scales, opacities from near to far, and one camera, in FP64; all there in FP32."""
    *parts, views, intrinsics = scene(*size)
    order = parts[0][:, 2].argsort()
    parts = [each[order] for each in parts]
    lens = [views[:1], intrinsics[:1]]
    return parts, lens, [each.float().to(where) for each in (*parts, *lens)]


def sigma_points(parts: list[Any], lens: list[Any]) -> tuple[Any, Any]:
    """Means and inverse covariances by seven points with alpha 0.1, beta 2 and kappa 0."""
    import torch

    means, quats, scales, _ = parts
    spread = 3 * 0.1**2
    axes = math.sqrt(spread) * (rotation(quats) * scales[:, None]).transpose(-1, -2)
    points = means[:, None] + torch.cat((torch.zeros_like(axes[:, :1]), axes, -axes), 1)
    seen = (lens[0][0, :3, :3] @ points[..., None])[..., 0] + lens[0][0, :3, 3]
    pixels = image_points("pinhole", seen.reshape(1, -1, 3), lens[1]).reshape(-1, 7, 2)
    weights = torch.tensor([1 - 3 / spread] + [1 / (2 * spread)] * 6).double()
    centre = (weights[:, None] * pixels).sum(1)
    weights[0] += 1 - 0.1**2 + 2
    away = (pixels - centre[:, None])[..., None]
    cover = (weights[:, None, None] * away * away.transpose(-1, -2)).sum(1) + 0.3 * torch.eye(2)
    return centre, upper(torch.linalg.inv(cover))


def compare_world(errors: Any, where: str, size: tuple[int, int]) -> None:
    import torch
    from gsplat import fully_fused_projection_with_ut, rasterize_to_pixels_eval3d
    from numerics import normal

    parts, lens, placed = facing(size, where)
    radii, centres, depths, conics, _ = fully_fused_projection_with_ut(*placed, *size)
    name = f"{size[0]}x{size[1]}"
    # The weights are near -99 and 17: two digits of FP32 are lost.
    compare_all(errors, name, "means conics", (centres[0], conics[0]), sigma_points(parts, lens), 1e-2)
    lists = tiled(centres, radii, depths, *size)
    turn, shift = lens[0][0, :3, :3], lens[0][0, :3, 3]
    rays = torch.nn.functional.pad(grid(*size), (0, 1), value=1) @ torch.linalg.inv(lens[1][0]).T @ turn

    def exact(m: Any, q: Any, s: Any, k: Any, o: Any, b: Any) -> Any:
        shrink = (rotation(q) / s[:, None]).transpose(-1, -2)
        start = (shrink @ (-turn.T @ shift - m)[..., None])[..., 0]
        along = torch.nn.functional.normalize((shrink @ rays[:, None, :, None])[..., 0], dim=-1)
        nearest = torch.linalg.cross(along, start.expand_as(along)).square().sum(-1)
        return composite((o * (-nearest / 2).exp())[None], k, b)

    def ours(m: Any, q: Any, s: Any, k: Any, o: Any, b: Any) -> Any:
        rest = *placed[4:], *size, TILE, *lists
        found = rasterize_to_pixels_eval3d(m, q, s, k, o[None], *rest, backgrounds=b)
        return [each.flatten(1, 2) for each in found]

    inputs = {
        "Means": parts[0], "Quats": parts[1], "Scales": parts[2],
        "Colors": normal(1, len(parts[0]), 3).float(), "Opacities": parts[3],
        "Background": normal(1, 3, seed=1).float(),
    }  # fmt: skip
    compare_both(errors, name, "colors opacities", inputs, ours, exact, where=where, allowed=5e-4)


def check_world() -> str:
    """By the unscented transform: projection by sigma points, Gaussians along the rays of the pixels."""
    from numerics import Errors

    where, errors = device(), Errors()
    for size in SIZES:
        compare_world(errors, where, size)
    return str(errors)


def transforms(means: Any, quats: Any, scales: Any, views: Any, intrinsics: Any) -> tuple[Any, Any]:
    """Depths, and what leads from the plane of each flat Gaussian to the image."""
    import torch

    turn = views[:, None, :3, :3]
    points = (turn @ means[..., None])[..., 0] + views[:, None, :3, 3]
    axes = turn @ (rotation(quats) * scales[:, None])
    return points[..., 2], intrinsics[:, None] @ torch.cat((axes[..., :2], points[..., None]), -1)


def compare_surfels(errors: Any, where: str, size: tuple[int, int]) -> None:
    import torch
    from gsplat import fully_fused_projection_2dgs, rasterize_to_pixels_2dgs
    from numerics import normal

    parts, lens, placed = facing(size, where)
    inputs = dict(zip(("Means", "Quats", "Scales"), parts, strict=False))
    name = f"{size[0]}x{size[1]}"
    compare_both(
        errors, name, "depths transforms", inputs,
        lambda m, q, s: fully_fused_projection_2dgs(m, q, s, *placed[4:], *size)[2:4],
        lambda m, q, s: transforms(m, q, s, *lens), where=where, allowed=5e-4,
    )  # fmt: skip
    radii, centres, depths, rays, _ = fully_fused_projection_2dgs(*placed[:3], *placed[4:], *size)
    lists, pixels = tiled(centres, radii, depths, *size), grid(*size)

    def exact(c: Any, t: Any, k: Any, o: Any, n: Any) -> Any:
        x, y = pixels[None, :, None, None].unbind(-1)
        first, second, third = t[:, None].unbind(-2)
        over = torch.linalg.cross(x * third - first, y * third - second)
        within = (over[..., :2] / over[..., 2:]).square().sum(-1)
        beside = 2 * (pixels[:, None] - c[:, None]).square().sum(-1)
        alphas = o[:, None] * (-torch.minimum(within, beside) / 2).exp()
        colors, cover, sure = composite(alphas, torch.cat((k, n), -1), k.new_zeros(1, 6))
        return colors[..., :3], cover, colors[..., 3:], sure

    def ours(c: Any, t: Any, k: Any, o: Any, n: Any) -> Any:
        found = rasterize_to_pixels_2dgs(c, t, k, o, n, torch.zeros_like(c), *size, TILE, *lists)
        return [each.flatten(1, 2) for each in found[:3]]

    tints = (normal(1, len(parts[0]), 3, seed=seed).float() for seed in (0, 1))
    given = centres.cpu(), rays.cpu(), next(tints), parts[3][None], next(tints)
    inputs = dict(zip(("Means", "Transforms", "Colors", "Opacities", "Normals"), given, strict=True))
    compare_both(errors, name, "colors opacities normals", inputs, ours, exact, where=where, allowed=5e-4)


def check_surfels() -> str:
    """2DGS: flat Gaussians, where the rays of the pixels meet their planes."""
    from numerics import Errors

    where, errors = device(), Errors()
    for size in SIZES:
        compare_surfels(errors, where, size)
    return str(errors)


def check_adam() -> str:
    """The optimizer leaves alone what was not seen."""
    import torch
    from gsplat.cuda._wrapper import adam
    from numerics import Errors, normal

    where, errors = device(), Errors()
    for count, width in ((1, 3), (513, 4)):
        inputs = [normal(count, width, seed=seed).float() for seed in range(3)]
        inputs.append(normal(count, width, seed=3).float().square())
        seen = torch.arange(count) % 3 != 1
        value, slope, mean, square = (each.double() for each in inputs)
        moved, spread = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope.square()
        stepped = value - 0.01 * moved / (spread.sqrt() + 1e-8)
        mine = [each.to(where) for each in inputs]
        adam(*mine, seen.to(where), 0.01, 0.9, 0.999, 1e-8)
        pairs = ((stepped, value), (moved, mean), (spread, square))
        exact = [torch.where(seen[:, None], new, old) for new, old in pairs]
        compare_all(errors, f"{count}", "parameters means squares", (mine[0], *mine[2:]), exact)
    return str(errors)


def check_relocation() -> str:
    """One Gaussian into several that look the same (3DGS as MCMC, equation 9)."""
    import torch
    from gsplat.relocation import compute_relocation
    from numerics import Errors

    where, errors, most, count = device(), Errors(), 51, 257
    opacities = torch.linspace(0.05, 0.95, count)
    scales = 0.1 + torch.rand(count, 3, generator=torch.Generator().manual_seed(0))
    parts = torch.arange(count) % 12 + 1
    table = torch.tensor([[math.comb(row, column) for column in range(most)] for row in range(most)]).float()
    found = compute_relocation(*(each.to(where) for each in (opacities, scales, parts, table)))
    new = 1 - (1 - opacities.double()) ** (1 / parts)
    totals = [
        sum(
            math.comb(i, k) * (-1) ** k / math.sqrt(k + 1) * one ** (k + 1)
            for i in range(pieces)
            for k in range(i + 1)
        )
        for one, pieces in zip(new.tolist(), parts.tolist(), strict=True)
    ]
    exact = new, scales.double() * (opacities.double() / torch.tensor(totals).double())[:, None]
    compare_all(errors, f"{count}", "opacities scales", found, exact, LOOSE)
    return str(errors)


CHECKS: dict[str, Callable[[], str]] = {
    "import": check_import,
    "reference": check_reference,
    "covariances": check_covariances,
    "harmonics": check_harmonics,
    "projection": check_projection,
    "tiles": check_tiles,
    "rasterization": check_rasterization,
    "world": check_world,
    "surfels": check_surfels,
    "adam": check_adam,
    "relocation": check_relocation,
}


if __name__ == "__main__":
    sys.exit(run(CHECKS))
