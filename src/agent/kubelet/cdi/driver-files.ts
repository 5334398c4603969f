// The driver capability (as in NVIDIA_DRIVER_CAPABILITIES) that needs each file and device node of NVIDIA's container
// toolkit. An unknown file is given to every container: CUDA may need a library that a newer driver adds.
import type { DriverCapability } from '../../../request/rules/namespace-rules.ts';

/** Capabilities of which a container needs one to get a file; empty: every container gets it. */
export type NeededBy = readonly DriverCapability[];

export const ALL_CONTAINERS: NeededBy = [];
const GRAPHICS: NeededBy = ['graphics'];
const VIDEO: NeededBy = ['video'];
const DISPLAY: NeededBy = ['display'];
const NGX: NeededBy = ['ngx'];
/** For graphics programs and for an X server. */
const EITHER: NeededBy = ['graphics', 'display'];

/**
 * Libraries by their names up to `.so`; a star at the end covers names that newer drivers add. Libraries that CUDA,
 * OpenCL or NVML load, too, are not listed (libnvidia-gpucomp, libnvidia-allocator).
 */
const LIBRARIES: readonly (readonly [whose: NeededBy, names: readonly string[]])[] = [
  // Decoding, encoding, optical flow.
  [VIDEO, ['libnvcuvid', 'libnvidia-encode', 'libnvidia-opticalflow', 'libvdpau_nvidia']],
  // Opened by GLVND and the Vulkan loader.
  [GRAPHICS, ['libGLX_nvidia', 'libGLX_indirect', 'libEGL_nvidia', 'libGLESv1_CM_nvidia', 'libGLESv2_nvidia']],
  // GLVND itself, which the driver's installer may contain.
  [GRAPHICS, ['libGL', 'libEGL', 'libGLESv1_CM', 'libGLESv2', 'libGLX', 'libGLdispatch', 'libOpenGL']],
  // Dependencies of these: EGL, shaders, frame capture.
  [GRAPHICS, ['libnvidia-eglcore', 'libnvidia-glsi', 'libnvidia-glvkspirv', 'libnvidia-fbc', 'libnvidia-ifr']],
  // Vulkan: its safety-critical variant, a presentation layer, a producer for EGL streams.
  [GRAPHICS, ['libnvidia-vksc-core', 'libnvidia-present', 'libnvidia-vulkan-producer']],
  // Ray tracing: Vulkan and OptiX.
  [GRAPHICS, ['libnvidia-rtcore', 'libnvidia-cbl', 'libnvoptix']],
  // EGL platforms and GBM.
  [GRAPHICS, ['libnvidia-egl-*', 'nvidia-drm_gbm']],
  // The core of OpenGL, which an X server's GLX needs, too.
  [EITHER, ['libnvidia-glcore', 'libnvidia-tls']],
  // The X server's driver and its GLX; the GUI of nvidia-settings.
  [DISPLAY, ['nvidia_drv', 'libglxserver_nvidia', 'libnvidia-gtk2', 'libnvidia-gtk3', 'libnvidia-wayland-client']],
  [NGX, ['libnvidia-ngx']],
];
const byStem = new Map(LIBRARIES.flatMap(([whose, names]) => names.map((name) => [name, whose] as const)));
const byStart = [...byStem].flatMap(([name, whose]) =>
  name.endsWith('*') ? [[name.slice(0, -1), whose] as const] : [],
);

/** Files that are not libraries, by path. */
const FILES: readonly (readonly [whose: NeededBy, path: RegExp])[] = [
  [GRAPHICS, /\/(vulkan|vulkansc)\/(icd|implicit_layer|explicit_layer)\.d\/[^/]*$/],
  [GRAPHICS, /\/(glvnd\/egl_vendor|egl\/egl_external_platform)\.d\/[^/]*$/],
  [GRAPHICS, /\/nvidia\/(nvoptix\.bin|nvidia-application-profiles-[^/]*)$/],
  [DISPLAY, /\/X11\/xorg\.conf\.d\/[^/]*$/],
  [NGX, /\/_?nvngx[^/]*\.dll$/],
];

/** `libcuda` of `/usr/lib64/libcuda.so.575.57`; undefined: not a library. */
const stemOf = (path: string): string | undefined => /([^/]+?)\.so(\.[^/]*)?$/.exec(path)?.[1];

/** Capabilities for a file, by its path in the container. */
export function capabilitiesOfFile(path: string): NeededBy {
  const stem = stemOf(path);
  const library =
    stem === undefined ? undefined : (byStem.get(stem) ?? byStart.find(([start]) => stem.startsWith(start))?.[1]);
  return library ?? FILES.find(([, pattern]) => pattern.test(path))?.[0] ?? ALL_CONTAINERS;
}

/** Capabilities for a device node: CUDA uses neither modesetting nor rendering nodes. */
export const capabilitiesOfNode = (path: string): NeededBy =>
  /^\/dev\/(dri(\/.*)?|nvidia-modeset)$/.test(path) ? EITHER : ALL_CONTAINERS;

/**
 * A hook that NVIDIA's container toolkit adds to each GPU's device since 1.20.1: running as root, it sets the driver's
 * memory limits for the container's cgroup from these variables in the container's environment.
 */
const LIMITS_HOOK = 'apply-cuda-memory-limits';
export const LIMITS_VARIABLES: readonly string[] = ['NVIDIA_GPU_MEMORY_REQUEST', 'NVIDIA_GPU_MEMORY_LIMIT'];

/**
 * Capabilities for a hook. Hooks that create links to /dev/dri or set its mode are needed only with these nodes. All
 * other hooks run for every container: dangling links do no harm. Undefined: the hook never runs, because a tenant
 * could set the driver's limits with it.
 */
export function capabilitiesOfHook(args: readonly string[]): NeededBy | undefined {
  if (args.includes(LIMITS_HOOK)) return undefined;
  const paths = args.slice(1).filter((arg) => arg.includes('/'));
  return paths.length > 0 && paths.every((arg) => arg.includes('/dev/dri')) ? EITHER : ALL_CONTAINERS;
}

/** Folders with 32-bit libraries only. */
const NARROW = /\/(i[3-6]86-linux-gnu|arm-linux-gnueabihf|lib32)\//;
/** Folders with 64-bit libraries on distributions without lib64, and with 32-bit ones on others. */
const EITHER_WIDTH = /^(\/usr)?\/lib\/(?!.*-linux-gnu)/;
const WIDE = /\/lib64\//;
const baseOf = (path: string) => path.slice(path.lastIndexOf('/') + 1);

/** Is the file at one of these paths a 32-bit library? The other paths may be needed to decide it. */
export function finderOf32BitLibraries(paths: readonly string[]): (path: string) => boolean {
  const wide = new Set(paths.filter((path) => WIDE.test(path)).map(baseOf));
  return (path) =>
    stemOf(path) !== undefined && (NARROW.test(path) || (EITHER_WIDTH.test(path) && wide.has(baseOf(path))));
}
