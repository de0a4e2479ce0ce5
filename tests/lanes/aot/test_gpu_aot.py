"""Lane gpu-aot: what a user sees of it, with the real CUDA plugin where that is installed."""

from __future__ import annotations

import json
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import pytest
from packaging.version import Version
from support.commands import xla_harness
from support.paths import ROOT
from support.project import Project, Ran

HAS_PLUGIN = any(find_spec(f"jax_cuda{version}_plugin") for version in (12, 13))
CUDA = "13" if find_spec("jax_cuda13_plugin") else "12"
needs_plugin = pytest.mark.skipif(not HAS_PLUGIN, reason="no CUDA plugin is installed")
# JAX 0.12 lowers pallas_call for Triton only.
KERNELS = ("triton", "mosaic_gpu") if Version(version("jax")) < Version("0.12") else ("triton",)
PROGRAMS = """
import importlib
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

def mesh_of(devices):
    return Mesh(np.array(devices).reshape(-1, 4), ("node", "gpu"))

def test_sum():
    sharding = NamedSharding(mesh_of(jax.devices()), P("node", "gpu"))
    x = jax.device_put(np.ones((64, 128), np.float32), sharding)
    assert (np.asarray(jax.jit(lambda x: x.sum(1))(x)) == 128).all()

def test_collectives():
    def body(x):
        x = jax.lax.psum_scatter(x, "node", tiled=True)
        x = jax.lax.all_gather(x, "gpu", tiled=True)
        x = jax.lax.ppermute(x, "gpu", [(n, (n + 1) % 4) for n in range(4)])
        return jax.lax.fori_loop(0, 5, lambda _, x: jnp.sin(jax.lax.psum(x, "gpu")) + x, x)

    spec = P(("node", "gpu"))
    mesh = mesh_of(jax.devices())
    fn = jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    jax.jit(fn).lower(jax.ShapeDtypeStruct((512, 256), "float32")).compile()

def test_too_large():
    rows = jax.ShapeDtypeStruct((110_000, 100_000), "float32")
    jax.jit(lambda x: x * 2).lower(rows).compile()

def test_no_step():
    pass

def test_loop_of_unknown_length():
    def body(x):
        return jax.lax.while_loop(lambda x: x.sum() < 100, lambda x: jax.lax.psum(x, "gpu"), x)
    mesh = mesh_of(jax.devices())
    fn = jax.shard_map(body, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    jax.jit(fn).lower(jax.ShapeDtypeStruct((8,), "float32")).compile()

@pytest.mark.parametrize("name", ["triton", "mosaic_gpu"])
def test_kernel(name):
    from jax.experimental import pallas as pl
    params = importlib.import_module(f"jax.experimental.pallas.{name}").CompilerParams()
    def double(x, out):
        out[...] = x[...] * 2
    out = jax.ShapeDtypeStruct((128, 128), "float32")
    jax.jit(pl.pallas_call(double, out, compiler_params=params)).lower(out).compile()
"""
CASES = """
import importlib
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

@pytest.mark.lanes("gpu-aot")
@pytest.mark.topologies("2xh100:4", "a100:8", "h200:8", "b200:8", "gb200:8", "l4:2")
@pytest.mark.frameworks("jax")
def test_generations(xla_compiler):
    rows = NamedSharding(Mesh(np.array(xla_compiler.devices), ("gpu",)), P("gpu"))
    x = jax.ShapeDtypeStruct((1024, 256), "bfloat16", sharding=rows)
    compiled = xla_compiler.jax(lambda x: (x @ x.T).sum(), x)
    assert compiled.flops > 0
    assert compiled.memory.arguments == 1024 * 512 // xla_compiler.topology.total
    assert [*compiled.options] == ["xla_gpu_autotune_level"]
    assert len(compiled.program.communicators) == 1

@pytest.mark.lanes("gpu-aot")
@pytest.mark.topologies("128xh100:8")
@pytest.mark.frameworks("jax")
def test_1024(xla_compiler):
    mesh = Mesh(np.array(xla_compiler.devices).reshape(-1, 8), ("dp", "tp"))
    def of(shape, *spec):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, P(*spec)))
    def step(w1, w2, x):
        def loss(w1, w2):
            return ((jax.nn.gelu(x @ w1) @ w2).astype(jnp.float32) ** 2).mean()
        value, (g1, g2) = jax.value_and_grad(loss, (0, 1))(w1, w2)
        return value, (w1 - 0.1 * g1, w2 - 0.1 * g2)
    weights = of((4096, 16384), None, "tp"), of((16384, 4096), "tp")
    compiled = xla_compiler.jax(step, *weights, of((512 * 1024, 4096), "dp"))
    assert compiled.seconds < 15
    assert compiled.program.bytes_across == 2 * 4096 * 16384 // 8 * 2 + 4  # the gradients, the loss
    assert compiled.program.kinds == {"all-reduce": 1}
    assert len(compiled.program.communicators) == 128 + 8

@pytest.mark.lanes("gpu-aot")
@pytest.mark.topologies("gb200:72")
@pytest.mark.frameworks("jax")
def test_a_rack_is_one_domain(xla_compiler):
    rows = NamedSharding(Mesh(np.array(xla_compiler.devices), ("gpu",)), P("gpu"))
    x = jax.ShapeDtypeStruct((72, 256), "float32", sharding=rows)
    program = xla_compiler.jax(lambda x: x.sum(0), x).program
    assert program.kinds == {"all-reduce": 1} and program.bytes_across == 0

@pytest.mark.lanes("gpu-aot")
@pytest.mark.topologies("h100:1")
@pytest.mark.frameworks("jax")
@pytest.mark.parametrize("name", ["triton", "mosaic_gpu"])
def test_kernel(xla_compiler, name):
    from jax.experimental import pallas as pl
    params = importlib.import_module(f"jax.experimental.pallas.{name}").CompilerParams()
    def double(x, out):
        out[...] = x[...] * 2
    sharding = NamedSharding(Mesh(np.array(xla_compiler.devices), ("gpu",)), P())
    x = jax.ShapeDtypeStruct((128, 128), "float32", sharding=sharding)
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    program = xla_compiler.jax(pl.pallas_call(double, out, compiler_params=params), x).program
    assert program.kernels == 1

@pytest.mark.lanes("gpu-aot")
@pytest.mark.topologies("h100:1", "a100:1")
@pytest.mark.frameworks("jax")
@pytest.mark.parametrize("warps", [4, 1])
def test_use(xla_compiler, warps):
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton
    def product(x, y, out):
        out[...] = jnp.dot(x[...], y[...], preferred_element_type="float32")
    sharding = NamedSharding(Mesh(np.array(xla_compiler.devices), ("gpu",)), P())
    x = jax.ShapeDtypeStruct((128, 128), "float16", sharding=sharding)
    out = jax.ShapeDtypeStruct(x.shape, "float32")
    params = triton.CompilerParams(num_warps=warps, num_stages=1)
    compiled = xla_compiler.jax(pl.pallas_call(product, out, compiler_params=params), x, x)
    (use,) = compiled.kernel_use.values()
    system = 1024 if xla_compiler.topology.generation == "h100" else 0
    assert use.shared == 2 * 128 * 128 * 2 + system  # both operands
    if warps == 1:  # whose 32 threads hold 16,384 sums
        assert use.local > 10_000
    else:
        assert 128 <= use.registers <= 255 and use.local < 100

ALL_REDUCE = '''
func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {
  %y = "stablehlo.all_reduce"(%x) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %c : tensor<f32>
  }) {replica_groups = dense<[[0, 2, 4, 6], [1, 3, 5, 7]]> : tensor<2x4xi64>}
    : (tensor<64xf32>) -> tensor<64xf32>
  return %y : tensor<64xf32>
}'''

@pytest.mark.lanes("gpu-aot")
@pytest.mark.topologies("h100:8")
@pytest.mark.frameworks("jax")
def test_exported(xla_compiler):
    from harness.ir import parse
    program = xla_compiler.program(parse(ALL_REDUCE).artifact).program
    (collective,) = program.collectives
    assert collective.groups == ((0, 2, 4, 6), (1, 3, 5, 7)) and collective.bytes == 256

@pytest.mark.lanes("gpu-aot")
@pytest.mark.topologies("h100:1")
@pytest.mark.frameworks("jax")
def test_exported_by_jax(xla_compiler):
    from jax import export
    square = jax.ShapeDtypeStruct((64, 64), "float32")
    exported = export.export(jax.jit(jnp.linalg.svd), platforms=["cuda"])(square)
    program = xla_compiler.program(exported.mlir_module_serialized, partitions=True).program
    assert any("cusolver" in name for name in program.operations)
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    project = Project(tmp_path_factory.mktemp("plain"))
    project.write("test_programs.py", PROGRAMS)
    return project.run("--lane=gpu-aot", "--topology=2xh100:4")


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    project = Project(tmp_path_factory.mktemp("cases"))
    project.write("test_cases.py", CASES)
    return project.run("--lane=gpu-aot")


def programs(ran: Ran, name: str) -> list[dict[str, Any]]:
    """Return the summaries of a case's programs."""
    compiled: list[dict[str, Any]] = json.loads(ran.properties(name)["aot_programs_compiled"])
    return compiled


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        ("8", "lane gpu-aot compiles for a generation: expected it in front of the size, as"),
        ("h100:3", "h100:3 is not a slice of a GPU: did you mean h100:2, h100:4 or h100:1?"),
        ("v6e:2x2", "a GPU generation 'v6e': expected one of a100, h100, h200, b200, gb200, l4"),
    ],
)
def test_a_wrong_topology_is_refused(project: Project, topology: str, message: str) -> None:
    project.write("test_plain.py", "def test_x(): pass")
    ran = project.run("--lane=gpu-aot", f"--topology={topology}")
    assert ran.code == 2
    assert ran.shows(message), ran.stderr


@pytest.mark.skipif(HAS_PLUGIN, reason="a CUDA plugin is installed")
def test_without_a_plugin_the_lane_says_which_to_install(project: Project) -> None:
    project.write("test_plain.py", "def test_x(): pass")
    ran = project.run("--lane=gpu-aot", "--topology=h100:8")
    assert ran.shows("no CUDA plugin is installed: expected jax-cuda12-plugin or jax-cuda13-plugin")


@pytest.mark.parametrize(
    ("cudas", "message"),
    [
        (("12", "13"), "expected the plugin of one CUDA, found those of 12 and 13"),
        ((CUDA,), "0.4.99 is for jaxlib 0.4.99, found jaxlib"),
    ],
)
def test_packages_that_do_not_fit_end_the_run(
    project: Project, cudas: tuple[str, ...], message: str
) -> None:
    for package in (f"jax_cuda{cuda}_{part}" for cuda in cudas for part in ("plugin", "pjrt")):
        metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.4.99\n"
        project.write(f"{package}-0.4.99.dist-info/METADATA", metadata)
    project.write("test_plain.py", "def test_x(): pass")
    ran = project.run("--lane=gpu-aot", "--topology=h100:8", PYTHONPATH=str(project.path))
    assert ran.code == 2, ran.stdout
    assert ran.shows(message), ran.stderr


@needs_plugin
def test_a_plain_test_is_compiled_without_running_elsewhere(ran: Ran) -> None:
    assert ran.outcomes["test_sum"] == "passed", ran.stdout
    (program,) = programs(ran, "test_sum")
    assert program["inside"] == ["all-reduce of 128 B over {0-3}"]


@needs_plugin
def test_collectives_are_inside_a_node_or_between_nodes(ran: Ran) -> None:
    assert ran.outcomes["test_collectives"] == "passed", ran.stdout
    (program,) = programs(ran, "test_collectives")
    bare = [text.removesuffix(", asynchronous") for text in program["inside"]]
    assert bare == [
        "all-gather of 131072 B over {0-3}",
        "all-reduce of 131072 B over {0-3}, 5 times a step",
        "collective-permute of 131072 B over 0->1 1->2 2->3 3->0",
    ]
    assert program["across"][0].startswith("REDUCE_SCATTER of 65536 B to 32768 B over {0,4} {1,5}")
    assert program["bytes_across"] == 65536
    assert program["communicators"] == 2 + 4 + 1  # for each node, each pair, and all
    assert program["options"] == ["xla_gpu_autotune_level=0"]
    assert any(text.endswith("fusion kLoop") for text in program["operations"])


@needs_plugin
def test_what_a_gpu_has_no_memory_for_fails(ran: Ran) -> None:
    assert ran.outcomes["test_too_large"] == "failed"
    message = ran.cases["test_too_large"].result[0].message
    assert "88000000000 bytes on a device, which has 85017493504" in message
    assert ran.properties("test_too_large")["layer"] == "compile"


@needs_plugin
def test_a_test_that_compiles_nothing_is_no_evidence(ran: Ran) -> None:
    assert ran.properties("test_no_step")["unproven"] == "it compiled nothing with the CUDA plugin"


@needs_plugin
@pytest.mark.parametrize(
    "topology", ["2xh100:4", "a100:8", "h200:8", "b200:8", "gb200:8", "l4:2", "128xh100:8"]
)
def test_every_generation_compiles(cases: Ran, topology: str) -> None:
    name = "test_1024" if topology == "128xh100:8" else "test_generations"
    assert cases.outcomes[f"{name}[gpu-aot-{topology}-jax]"] == "passed", cases.stdout


@needs_plugin
@pytest.mark.parametrize(
    "name",
    [
        "test_a_rack_is_one_domain[gpu-aot-gb200:72-jax]",
        "test_exported[gpu-aot-h100:8-jax]",
        "test_exported_by_jax[gpu-aot-h100:1-jax]",
        *(f"test_kernel[gpu-aot-h100:1-jax-{kernel}]" for kernel in KERNELS),
    ],
)
def test_every_input_compiles(cases: Ran, name: str) -> None:
    assert cases.outcomes[name] == "passed", cases.stdout


@needs_plugin
@pytest.mark.parametrize("gpu", ["h100", "a100"])
def test_what_a_kernel_uses_is_recorded(cases: Ran, gpu: str) -> None:
    """Equal to what NVIDIA's ``cuobjdump --dump-resource-usage`` says of the same file."""
    for warps in (4, 1):
        name = f"test_use[gpu-aot-{gpu}:1-jax-{warps}]"
        assert cases.outcomes[name] == "passed", cases.stdout
        (program,), record = programs(cases, name), cases.properties(name)
        for fact in ("registers", "shared", "local"):
            assert (
                record[f"aot_{fact}"] == str(program[fact]) == str(program["uses"]["product"][fact])
            )


@needs_plugin
@pytest.mark.skipif(find_spec("filelock") is None, reason="a stack's environment has no commands")
def test_topologies_lists_what_the_plugin_takes() -> None:
    done = xla_harness("stacks", "topologies", "--json", "-", check=True, cwd=ROOT)
    listed = json.loads(done.stdout)
    assert listed["compilers"][f"jax_cuda{CUDA}_plugin"] == version(f"jax_cuda{CUDA}_plugin")
    assert listed["topologies"]["gb200"][-1] == "gb200:72"
    assert listed["topologies"]["l4"] == ["l4:1", "l4:2", "l4:4", "l4:8"]
    assert not listed["refused"]


@needs_plugin
def test_a_loop_of_unknown_length_says_so(ran: Ran) -> None:
    (program,) = programs(ran, "test_loop_of_unknown_length")
    assert program["inside"] == ["all-reduce of 32 B over {0-3}, ? times a step"]


@needs_plugin
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_of_plain_tests_compile(ran: Ran, kernel: str) -> None:
    assert ran.outcomes[f"test_kernel[{kernel}]"] == "passed", ran.stdout
    assert ran.properties(f"test_kernel[{kernel}]")["aot_kernels"] == "1"


@needs_plugin
def test_a_changed_compilation_differs_from_the_golden_one(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\nxla_golden = golden\n")
    project.write("test_cases.py", CASES)
    name = "test_a_rack_is_one_domain"
    assert project.run("--lane=gpu-aot", f"-k{name}", "--update-golden").code == 0
    (file,) = (project.path / "golden").rglob("test_cases-jax-gpu-aot.toml")
    assert project.run("--lane=gpu-aot", f"-k{name}").code == 0
    file.write_text(file.read_text().replace("all-reduce of", "all-gather of"))
    changed = project.run("--lane=gpu-aot", f"-k{name}")
    assert changed.code == 1
    assert changed.shows("-program 1: inside all-gather of 1024 B over {0-71}"), changed.stdout
