// The driver capability (as in NVIDIA_DRIVER_CAPABILITIES) that needs each file and device node of NVIDIA's container toolkit.
// An unknown file is given to every container: CUDA may need a library that a newer driver adds.
import type { DriverCapability } from '../../../request/rules/namespace-rules.ts';

/** Any of them brings it; none: everybody has it. */
export type For = readonly DriverCapability[];

export const EVERYBODY: For = [];
const GRAPHICS: For = ['graphics'];
const VIDEO: For = ['video'];
const DISPLAY: For = ['display'];
const NGX: For = ['ngx'];
/** For programs that draw and for an X server alike. */
const EITHER: For = ['graphics', 'display'];

/**
 * By their names up to `.so`, with a star at the end for what newer drivers have more of. Not here: what CUDA, OpenCL or NVML load
 * where graphics is but another user (libnvidia-gpucomp, libnvidia-allocator).
 */
const LIBRARIES: readonly (readonly [whose: For, names: readonly string[]])[] = [
  // Decoding, encoding, optical flow.
  [VIDEO, ['libnvcuvid', 'libnvidia-encode', 'libnvidia-opticalflow', 'libvdpau_nvidia']],
  // What GLVND and Vulkan's loader open.
  [GRAPHICS, ['libGLX_nvidia', 'libGLX_indirect', 'libEGL_nvidia', 'libGLESv1_CM_nvidia', 'libGLESv2_nvidia']],
  // GLVND's own, which the driver's installer can bring.
  [GRAPHICS, ['libGL', 'libEGL', 'libGLESv1_CM', 'libGLESv2', 'libGLX', 'libGLdispatch', 'libOpenGL']],
  // What those are made of: EGL, shaders, frame capture.
  [GRAPHICS, ['libnvidia-eglcore', 'libnvidia-glsi', 'libnvidia-glvkspirv', 'libnvidia-fbc', 'libnvidia-ifr']],
  // Vulkan beside its driver: its safety-critical form, a layer that shows frames, a producer for EGL's streams.
  [GRAPHICS, ['libnvidia-vksc-core', 'libnvidia-present', 'libnvidia-vulkan-producer']],
  // Rays: Vulkan's and OptiX'.
  [GRAPHICS, ['libnvidia-rtcore', 'libnvidia-cbl', 'libnvoptix']],
  // Platforms of EGL, and GBM's.
  [GRAPHICS, ['libnvidia-egl-*', 'nvidia-drm_gbm']],
  // GL's core, which the GLX of an X server needs, too.
  [EITHER, ['libnvidia-glcore', 'libnvidia-tls']],
  // An X server's driver and its GLX; windows of nvidia-settings.
  [DISPLAY, ['nvidia_drv', 'libglxserver_nvidia', 'libnvidia-gtk2', 'libnvidia-gtk3', 'libnvidia-wayland-client']],
  [NGX, ['libnvidia-ngx']],
];
const byStem = new Map(LIBRARIES.flatMap(([whose, names]) => names.map((name) => [name, whose] as const)));
const byStart = [...byStem].flatMap(([name, whose]) =>
  name.endsWith('*') ? [[name.slice(0, -1), whose] as const] : [],
);

/** What is no library, by where it lies. */
const FILES: readonly (readonly [whose: For, path: RegExp])[] = [
  [GRAPHICS, /\/(vulkan|vulkansc)\/(icd|implicit_layer|explicit_layer)\.d\/[^/]*$/],
  [GRAPHICS, /\/(glvnd\/egl_vendor|egl\/egl_external_platform)\.d\/[^/]*$/],
  [GRAPHICS, /\/nvidia\/(nvoptix\.bin|nvidia-application-profiles-[^/]*)$/],
  [DISPLAY, /\/X11\/xorg\.conf\.d\/[^/]*$/],
  [NGX, /\/_?nvngx[^/]*\.dll$/],
];

/** `libcuda` of `/usr/lib64/libcuda.so.575.57`; undefined: no library. */
const stemOf = (path: string): string | undefined => /([^/]+?)\.so(\.[^/]*)?$/.exec(path)?.[1];

/** Of a file, by its path in the container. */
export function fileIsFor(path: string): For {
  const stem = stemOf(path);
  const library =
    stem === undefined ? undefined : (byStem.get(stem) ?? byStart.find(([start]) => stem.startsWith(start))?.[1]);
  return library ?? FILES.find(([, pattern]) => pattern.test(path))?.[0] ?? EVERYBODY;
}

/** Of a device node: those of modes and of rendering are no program's of CUDA. */
export const nodeIsFor = (path: string): For =>
  /^\/dev\/(dri(\/.*)?|nvidia-modeset)$/.test(path) ? EITHER : EVERYBODY;

/**
 * From NVIDIA's container toolkit 1.20.1 on in each GPU's device: as root it sets limits of the driver's for the container's group,
 * and takes them from these variables in the container's own environment.
 */
const LIMITS_HOOK = 'apply-cuda-memory-limits';
export const LIMITS_VARIABLES: readonly string[] = ['NVIDIA_GPU_MEMORY_REQUEST', 'NVIDIA_GPU_MEMORY_LIMIT'];

/**
 * Of a hook: links to such nodes, and their folder's mode, are of no use without them. All others are everybody's: links that lead
 * nowhere do no harm. Undefined: never given, because a tenant could set the agent's limits with it.
 */
export function hookIsFor(args: readonly string[]): For | undefined {
  if (args.includes(LIMITS_HOOK)) return undefined;
  const paths = args.slice(1).filter((arg) => arg.includes('/'));
  return paths.length > 0 && paths.every((arg) => arg.includes('/dev/dri')) ? EITHER : EVERYBODY;
}

/** Folders of 32-bit libraries by their names alone. */
const NARROW = /\/(i[3-6]86-linux-gnu|arm-linux-gnueabihf|lib32)\//;
/** Of 64-bit libraries where a distribution has no lib64. */
const EITHER_WIDTH = /^(\/usr)?\/lib\/(?!.*-linux-gnu)/;
const WIDE = /\/lib64\//;
const baseOf = (path: string) => path.slice(path.lastIndexOf('/') + 1);

/** Is the file at one of these paths a 32-bit library? The other paths may be needed to decide it. */
export function narrowAmong(paths: readonly string[]): (path: string) => boolean {
  const wide = new Set(paths.filter((path) => WIDE.test(path)).map(baseOf));
  return (path) =>
    stemOf(path) !== undefined && (NARROW.test(path) || (EITHER_WIDTH.test(path) && wide.has(baseOf(path))));
}
