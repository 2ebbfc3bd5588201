! Output frames: two header lines, then one line for each row of cells, species after species.
module frames
  use kinds, only: dp
  implicit none

contains

  subroutine write_frame(folder, number, step, time, dt, q)
    character(len=*), intent(in) :: folder
    integer, intent(in) :: number, step
    real(dp), intent(in) :: time, dt, q(:, :, :)
    character(len=12) :: name
    integer :: unit, j, s
    write(name, '(a, i3.3, a)') 'frame', number, '.txt'
    open(newunit=unit, file=folder//'/'//name, status='replace', action='write')
    write(unit, '(a, i0, a, i0, a, es23.16, a, es23.16)') '# frame ', number, ' step ', step, ' time ', time, ' dt ', dt
    write(unit, '(a, i0, a, i0)') '# rows ', size(q, 2) * size(q, 3), ' columns ', size(q, 1)
    do s = 1, size(q, 3)
      do j = 1, size(q, 2)
        write(unit, '(*(es25.16e3))') q(:, j, s)
      end do
    end do
    close(unit)
  end subroutine write_frame

end module frames
