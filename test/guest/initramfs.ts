// Builds the root file system of a guest in memory as an archive in the "newc" cpio format, which Linux unpacks at
// boot. files.ts lists the contents.
import { lstatSync, readdirSync, readFileSync, realpathSync } from 'node:fs';
import { join, posix } from 'node:path';

const FOLDER = 0o040755;
const FILE = 0o100755;
const LINK = 0o120777;

export type Archive = {
  /** Copies the file or folder at `from`, following links, to `to` in the guest. */
  put(from: string, to: string): void;
  write(to: string, content: string): void;
  link(to: string, target: string): void;
  folder(to: string): void;
  /** The archive of all files. */
  end(): Buffer;
};

export function createArchive(): Archive {
  const parts: Buffer[] = [];
  const folders = new Set(['.', '/', '']);
  let inode = 0;
  const entry = (name: string, mode: number, content: Buffer): void => {
    const text = Buffer.from(`${name}\0`);
    inode += 1;
    // inode, mode, uid, gid, links, time, size, four numbers of devices, length of the name, checksum
    const numbers = [inode, mode, 0, 0, 1, 0, content.length, 0, 0, 0, 0, text.length, 0];
    const head = Buffer.from(`070701${numbers.map((value) => value.toString(16).padStart(8, '0')).join('')}`);
    parts.push(padded(Buffer.concat([head, text])), padded(content));
  };
  const folder = (to: string): void => {
    const name = posix.normalize(to).replace(/^\/|\/$/g, '');
    if (folders.has(name)) return;
    folder(posix.dirname(name));
    folders.add(name);
    entry(name, FOLDER, Buffer.alloc(0));
  };
  const place = (to: string): string => {
    folder(posix.dirname(to));
    return posix.normalize(to).replace(/^\//, '');
  };
  return {
    folder,
    put(from, to) {
      const path = realpathSync(from);
      if (!lstatSync(path).isDirectory()) {
        entry(place(to), FILE, readFileSync(path));
        return;
      }
      folder(to);
      for (const name of readdirSync(path)) this.put(join(path, name), posix.join(to, name));
    },
    write: (to, content) => entry(place(to), FILE, Buffer.from(content)),
    link: (to, target) => entry(place(to), LINK, Buffer.from(target)),
    end() {
      entry('TRAILER!!!', 0, Buffer.alloc(0));
      return Buffer.concat(parts);
    },
  };
}

/** Headers and contents are both aligned to four bytes. */
const padded = (bytes: Buffer): Buffer => Buffer.concat([bytes, Buffer.alloc(-bytes.length & 3)]);
