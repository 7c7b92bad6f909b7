'use strict';
// Builds the addon, beside this file or at the path that is given: EKIDEN_LIB_DIR is the folder of
// libekiden_runtime.so, whose headers lie in EKIDEN_INCLUDE_DIR or where the repository or the Python package
// has them. EKIDEN_RPATH is where it looks for the library later, else that folder.
//
// With --unless-prebuilt, as npm calls it, nothing is done where the package has one for this platform.

const {execFileSync} = require('node:child_process');
const {existsSync} = require('node:fs');
const path = require('node:path');

const platform = path.join(__dirname, `prebuilt/${process.platform}-${process.arch}`);
if (process.argv[2] === '--unless-prebuilt' && existsSync(path.join(platform, 'ekiden.node'))) process.exit(0);

const library = process.env.EKIDEN_LIB_DIR;
if (!library) throw new Error('EKIDEN_LIB_DIR names the folder of libekiden_runtime.so');

function folderWith(file, folders) {
  const found = folders.find((each) => each && existsSync(path.join(each, file)));
  if (!found) throw new Error(`${file} is in none of ${folders.filter(Boolean).join(', ')}`);
  return found;
}

const node = folderWith('node_api.h', [
  process.env.NODE_INCLUDE_DIR,
  path.resolve(process.execPath, '../../include/node'),
  '/usr/include/node',
]);
const headers = folderWith('ekiden/runtime.h', [
  process.env.EKIDEN_INCLUDE_DIR,
  path.join(library, 'include'),
  path.join(__dirname, '../../runtime/include'),
]);
const [given] = process.argv.slice(2).filter((each) => !each.startsWith('--'));
const target = given || path.join(__dirname, 'ekiden.node');
execFileSync(process.env.CC || 'cc', [
  '-std=gnu11', '-O2', '-fPIC', '-shared', '-Wall', '-Wextra', '-Werror', '-DNAPI_VERSION=8',
  '-DNODE_GYP_MODULE_NAME=ekiden', `-I${node}`, `-I${headers}`, path.join(__dirname, 'ekiden.c'),
  '-o', target, path.join(library, 'libekiden_runtime.so'), `-Wl,-rpath,${process.env.EKIDEN_RPATH || library}`,
], {stdio: 'inherit'});
