// Writes the termination message of a container that is stopped: into the file that the kubelet reads when the
// container ends. A tenant chooses where its container sees the file, and can write to it: so only a file in the
// kubelet's own folder is opened, no link is followed, and its content is not trusted.
import { closeSync, constants, fstatSync, openSync, readdirSync, realpathSync, statSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import type { Logger } from '../../common/logger.ts';
import { type Grant, isOfPod } from '../grants/grant.ts';

/** Kubernetes shows this many bytes at the end. */
const LONGEST = 4096;
/** How the kubelet names the file of each start. */
const NAME = /^[0-9a-f]{8}$/;

const placeOf = (podUid: string, container: string): string[] => ['pods', podUid, 'containers', container];

/** The kubelet's file behind a mount of a container, if it is one of that container's. */
export function terminationLogBehind(source: string, podUid: string, container: string): string | undefined {
  const segments = source.split('/');
  const name = segments.pop() ?? '';
  const place = placeOf(podUid, container);
  return NAME.test(name) && segments.slice(-place.length).join('/') === place.join('/') ? name : undefined;
}

/** The kubelet's folder for the container; throws where it does not exist or is reached through a link. */
function folderOf(kubeletRoot: string, podUid: string, container: string): string {
  const place = placeOf(podUid, container);
  const folder = join(realpathSync(kubeletRoot), ...place);
  if (place.some((segment) => !/^[\w-][\w.-]*$/.test(segment)) || realpathSync(folder) !== folder)
    throw new Error(`${folder} is not the kubelet's folder`);
  return folder;
}

/** The file of this name among those that the kubelet made for starts of the container, else the newest. */
function fileIn(folder: string, expected: string | undefined): string | undefined {
  const files = readdirSync(folder, { withFileTypes: true }).filter((entry) => entry.isFile() && NAME.test(entry.name));
  if (files.some(({ name }) => name === expected)) return expected;
  const dated = files.map(({ name }) => ({ name, at: statSync(join(folder, name)).birthtimeMs }));
  return dated.toSorted((a, b) => b.at - a.at)[0]?.name;
}

/**
 * Appends to the file that the runtime named, else to the newest; what the container wrote stays before the message.
 * Throws where there is no file, or it cannot be written.
 */
export function writeTerminationMessage(folder: string, expected: string | undefined, message: string): void {
  const name = fileIn(folder, expected);
  if (name === undefined) throw new Error('the kubelet made no file for the container');
  const { O_WRONLY, O_APPEND, O_NOFOLLOW, O_NONBLOCK, O_NOCTTY } = constants;
  const fd = openSync(join(folder, name), O_WRONLY | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  try {
    writeSync(fd, `${fstatSync(fd).size > 0 ? '\n' : ''}${message}`.slice(0, LONGEST));
  } finally {
    closeSync(fd);
  }
}

/** `terminationLog`: the name of the file, where the runtime reported it. */
export function createTerminationMessages(
  kubeletRoot: string,
  log: Pick<Logger, 'warn'>,
): (grant: Grant, message: string, terminationLog: string | undefined) => void {
  return ({ owner, namespace, pod, container }, message, terminationLog) => {
    if (!isOfPod(owner)) return;
    try {
      writeTerminationMessage(folderOf(kubeletRoot, owner.podUid, container), terminationLog, message);
    } catch (error) {
      log.warn(`${namespace}/${pod}/${container} gets no termination message: ${(error as Error).message}`);
    }
  };
}
