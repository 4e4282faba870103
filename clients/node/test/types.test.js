// The types are those of the source, and a program that uses them compiles. Needs typescript (from npm).

import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { cpSync, existsSync } from 'node:fs'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'

const folder = fileURLToPath(new URL('..', import.meta.url))
const tsc = `${folder}/node_modules/typescript/bin/tsc`

function compile(...args) {
  const options = ['--noEmit', '--target', 'es2022', '--lib', 'es2022,esnext.disposable', '--module', 'nodenext', '--types', 'node', '--skipLibCheck']
  const { stdout, status } = spawnSync(process.execPath, [tsc, ...options, ...args], { cwd: folder, encoding: 'utf8' })
  assert.equal(status, 0, stdout)
}

test('a program that uses the types', { skip: existsSync(tsc) ? false : 'no typescript' }, () => compile('--strict', 'test/usage.ts'))

test('the source has these types', { skip: existsSync(tsc) ? false : 'no typescript' }, () => {
  cpSync(`${folder}/node_modules/lease-lock/src`, `${folder}/test/source`, { recursive: true, filter: (name) => !name.endsWith('.d.ts') })
  compile('--allowJs', '--checkJs', 'test/source.ts')
})
